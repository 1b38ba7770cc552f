// What an operator may do from here, when the dashboard was started with --write: nothing that was
// not shown before, and confirmed.

import { element, whole, visible } from "./format.js";
import { table } from "./lists.js";

async function post(path, document_) {
  const answer = await fetch(`/api/${path}`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(document_),
  });
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error ?? answer.statusText);
  return found;
}

const button = (text, onclick, more = {}) => element("button", { type: "button", text, onclick, ...more });

// Buttons for a group and, where they are given, a topic and a partition of it.
export function actionsOf(model, group, topic, partition) {
  if (!model.head.write) return [];
  const paused = model.groups.find((g) => g.group === group)?.paused_until_ms != null;
  const found = [];
  if (partition === undefined) {
    found.push(paused
      ? button("Resume …", () => ask("Resume", { what: "resume", group }))
      : button("Pause …", () => ask("Pause", { what: "pause", group }, [
        ["for_s", "For how long", "number", "900", "seconds"],
      ])));
  }
  if (topic != null && !topic.includes(":")) {
    const where = partition === undefined ? {} : { partition };
    found.push(button("Set position …", () => ask("Set the position of", { what: "set_position", group, topic, ...where }, [
      ["to", "Where to", "text", "-1000", "an offset, -1000, +1000, earliest or latest"],
    ])));
  }
  return found;
}

export function askToReplay(topic, letters, done) {
  ask(`Replay letters of ${topic}`, { what: "replay", topic, letters }, [], done);
}

function ask(verb, action, fields = [], done = null) {
  const inputs = fields.map(([name, , type, value]) => element("input", { name, type, value, required: true, min: type === "number" ? 1 : null }));
  const place = action.partition == null ? action.topic : `${action.topic}/${action.partition}`;
  const title = action.letters ? verb : action.topic ? `${verb} ${place} in ${action.group}` : `${verb} ${action.group}`;
  const told = element("p", { role: "status" });
  const shown = element("div", { class: "preview", tabindex: 0, role: "region", "aria-label": "Preview" });
  const close = button("Cancel", () => {
    dialog.close(); // gives the focus back
    dialog.remove();
  });
  const look = button("Preview", () => preview());
  const perform = button("Do it", () => go(), { class: "danger", hidden: true });
  const rows = element("div", { class: "fields" });
  fields.forEach(([, label, , , hint], i) => {
    inputs[i].id = `field-${i}`;
    rows.append(element("label", { for: inputs[i].id, text: label }),
      element("span", {}, inputs[i], " ", element("span", { class: "dim", text: hint })));
    inputs[i].addEventListener("input", () => offer(null));
  });
  const dialog = element("dialog", { "aria-label": title },
    element("h2", { text: title }), fields.length ? rows : null, told, shown,
    element("menu", {}, close, look, perform));
  let ticket = null;

  function offer(found) {
    ticket = found?.ticket ?? null;
    perform.hidden = !ticket;
    look.hidden = Boolean(ticket);
    tell(found?.text ?? "", found?.changes ?? [], found?.letters ?? []);
  }

  function tell(text, changes = [], letters = [], wrong = false) {
    told.textContent = visible(text);
    told.className = wrong ? "error" : "";
    shown.replaceChildren(...(letters.length ? [table("What goes where", [
      ["Letter", (l) => l.letter.join("@"), { class: "mono" }],
      ["To", (l) => `${l.topic}/${l.partition}`],
      ["From offset", (l) => whole(l.end), { n: true }],
      ["Key", (l) => l.key ?? "(null)"],
      ["Before", (l) => (l.replayed ? "replayed" : "")],
    ], letters)] : changes.length ? [table("What changes", [
      ["Partition", (c) => `${c.topic}/${c.partition}`],
      ["From", (c) => (c.before < 0 ? "–" : whole(c.before)), { n: true }],
      ["To", (c) => whole(c.after), { n: true }],
      ["Messages", (c) => (c.before < 0 ? "" : `${c.after >= c.before ? "+" : "−"}${whole(Math.abs(c.after - c.before))}`), { n: true }],
      ["Held by", (c) => c.holder ?? ""],
    ], changes)] : []));
  }

  async function working(work) {
    for (const each of [look, perform, ...inputs]) each.disabled = true;
    try {
      await work();
    } catch (error) {
      offer(null);
      tell(error.message, [], [], true);
    }
    for (const each of [look, perform, ...inputs]) each.disabled = false;
  }

  const preview = () => working(async () => {
    const wanted = { ...action };
    for (const input of inputs) wanted[input.name] = input.type === "number" ? Number(input.value) : input.value;
    offer(await post("preview", wanted));
    perform.disabled = false;
    perform.focus();
  });

  const go = () => working(async () => {
    told.textContent = action.letters ? "doing it …" : "doing it: members have to let go first …";
    const answer = await post("perform", { ticket });
    offer(null);
    look.hidden = true;
    tell(answer.text, answer.changes);
    done?.();
    close.textContent = "Close";
    close.focus();
  });

  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  if (!inputs.length) preview();
}
