"""Messages as JSON, for programs."""

import orjson
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message


def message_json(message: Message) -> str:
    """One line, with the names of the protocol and every field that has a default."""
    as_dict = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    return orjson.dumps(as_dict).decode()
