// What an operator may do from here, when the dashboard was started with --write.

export function actionsOf() {
  return [];
}
