"""What type checkers know of messages and handlers, and how values are decoded.

`Consumer(…, decode=Order)` is a `Consumer[Order]`: its messages are `TypedMessage[Order]`, of which
`value()` is an `Order`. Without `decode` they are `TypedMessage[bytes]`. All are confluent-kafka's
own messages, whatever they are called here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias

from confluent_kafka import Message

from marshal_py.errors import ConfigurationError

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from marshal_py.client.marshal import Claim
    from marshal_py.consumer.handlers.message_copy import MessageCopy
    from marshal_py.consumer.handlers.options import ClaimSnapshot
    from marshal_py.consumer.held_partition import Batch

    V = TypeVar("V", default=bytes)

    class TypedMessage(Message[Any, Any], Generic[V]):
        """A `confluent_kafka.Message` of which `value()` is a V, or None for a tombstone."""

        def value(self) -> V | None: ...  # type: ignore[override]

    class _WithClaim(Protocol[V]):
        def __call__(self, message: TypedMessage[V], /, *, claim: Claim) -> object: ...

    Handler: TypeAlias = (
        Callable[[TypedMessage[V]], object]
        | Callable[[TypedMessage[V], Claim], object]
        | _WithClaim[V]
        | Callable[[Batch], object]
        | Callable[[Batch, Claim], object]
        | Callable[[MessageCopy], object]
        | Callable[[MessageCopy, ClaimSnapshot], object]
    )
else:
    from typing import TypeVar

    V = TypeVar("V")

    class TypedMessage(Message, Generic[V]):
        """A `confluent_kafka.Message` of which `value()` is a V, or None for a tombstone."""

    Handler = Callable


__all__ = ["Decode", "Handler", "TypedMessage", "V", "decoder"]

Decode: TypeAlias = "type[V] | Callable[[bytes], V]"


def decoder(decode: Any) -> Callable[..., Any]:
    """Return the deserializer that `decode` stands for. Raises `ConfigurationError`.

    A pydantic model, or a type that msgspec knows: the value is JSON of it. Else a function of the
    value's bytes. A tombstone stays None.
    """
    read = _reader(decode)

    def deserialize(value: bytes | None, _: object) -> Any:
        return None if value is None else read(value)

    return deserialize


def _reader(decode: Any) -> Callable[[bytes], Any]:
    if hasattr(decode, "model_validate_json"):
        read: Callable[[bytes], Any] = decode.model_validate_json
        return read
    is_type = isinstance(decode, type) or hasattr(decode, "__origin__")
    if not is_type and callable(decode):
        return decode  # type: ignore[no-any-return]
    import msgspec

    try:
        return msgspec.json.Decoder(decode).decode
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"decode = {decode!r} must be a pydantic model, a type that msgspec reads from JSON, "
            f"or a function of the value's bytes: {error}"
        ) from None
