"""The wire as the generated code describes it, spoken to by names alone."""

import importlib
import pkgutil
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc
import rolegate.v1
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import (
    Descriptor,
    FieldDescriptor,
    MethodDescriptor,
    ServiceDescriptor,
)
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from grpc_status import rpc_status

PACKAGE = "rolegate.v1"
Metadata = Sequence[tuple[str, str]]
Json = dict[str, Any]
_TYPES = {
    getattr(FieldDescriptor, name): name[5:].lower()
    for name in dir(FieldDescriptor)
    if name[:5] == "TYPE_"
}


def services() -> dict[str, ServiceDescriptor]:
    """Every service of the generated code, by its name without the package."""
    found = {}
    for module in pkgutil.iter_modules(rolegate.v1.__path__):
        if module.name.endswith("_pb2"):
            descriptor = importlib.import_module(f"{PACKAGE}.{module.name}").DESCRIPTOR
            found.update(dict(descriptor.services_by_name))
    return found


def described() -> Json:
    """All of the wire: methods with their messages, fields with their types, values of enums."""
    methods: Json = {}
    messages: Json = {}
    enums: Json = {}

    def add(message: Descriptor) -> None:
        if message.name in messages or message.file.package != PACKAGE:
            return
        messages[message.name] = fields = {}
        for field in message.fields:
            kind = field.message_type or field.enum_type
            one_of = field.containing_oneof.name if field.containing_oneof else ""
            optional = one_of == f"_{field.name}"
            many = "repeated " if field.is_repeated else "optional " if optional else ""
            of = f" of {one_of}" if one_of and not optional else ""
            fields[field.name] = f"{many}{kind.name if kind else _TYPES[field.type]}{of}"
            if field.message_type:
                add(field.message_type)
            if field.enum_type:
                enums[field.enum_type.name] = [value.name for value in field.enum_type.values]

    for name, service in services().items():
        for method in service.methods:
            methods[f"{name}/{method.name}"] = [
                f"{'stream ' * method.client_streaming}{method.input_type.name}",
                f"{'stream ' * method.server_streaming}{method.output_type.name}",
            ]
            add(method.input_type)
            add(method.output_type)
    return {"methods": methods, "messages": messages, "enums": enums}


class RPCError(Exception):
    """What a call ended with instead of a response."""

    def __init__(self, error: Any) -> None:
        super().__init__(str(error))
        self.code = error.code().name
        self.reason = ""
        self.metadata = dict[str, str]()
        self.retries = False
        status = rpc_status.from_call(error)
        for detail in status.details if status else ():
            info = error_details_pb2.ErrorInfo()
            if detail.Unpack(info):
                self.reason = info.reason
                self.metadata = dict(info.metadata)
            self.retries |= detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR)


class Wire:
    """Calls methods of one gateway with requests as JSON."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self.called: set[str] = set()

    async def call(
        self, rpc: str, request: Json, *, timeout_s: float = 20, metadata: Metadata = ()
    ) -> Json:
        """The response. Raises `RPCError`."""
        ask = self._asking(rpc, self._channel.unary_unary)
        message = new_message(method_of(rpc).input_type, request)
        try:
            return as_json(await ask(message, timeout=timeout_s, metadata=metadata))
        except grpc.aio.AioRpcError as error:
            raise RPCError(error) from None

    async def stream(
        self, rpc: str, request: Json, *, timeout_s: float, metadata: Metadata
    ) -> AsyncIterator[Json]:
        """The responses. Raises `RPCError`; leaving cancels the call."""
        ask = self._asking(rpc, self._channel.unary_stream)
        call = ask(
            new_message(method_of(rpc).input_type, request), timeout=timeout_s, metadata=metadata
        )
        try:
            async for response in call:
                yield as_json(response)
        except grpc.aio.AioRpcError as error:
            raise RPCError(error) from None
        finally:
            call.cancel()

    def _asking(self, rpc: str, kind: Callable[..., Any]) -> Any:
        method = method_of(rpc)
        self.called.add(rpc)
        path = f"/{method.containing_service.full_name}/{method.name}"
        return kind(
            path,
            lambda message: message.SerializeToString(),
            message_class(method.output_type).FromString,
        )


def method_of(rpc: str) -> MethodDescriptor:
    """A method by its name, such as `AnswerService/Answer`."""
    service, name = rpc.split("/")
    return services()[service].methods_by_name[name]


def new_message(kind: Descriptor, request: Json) -> Message:
    """A message from JSON."""
    message: Message = message_class(kind)()
    return json_format.ParseDict(request, message)


def message_class(kind: Descriptor) -> Any:
    """The class of a kind of messages."""
    return message_factory.GetMessageClass(kind)


def as_json(message: Message) -> Json:
    """A message under the names of the protocol, with every field that has a default."""
    found: Json = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return found
