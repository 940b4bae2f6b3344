"""The SDK: a cluster's public gRPC door from Python. Loads neither torch nor a service."""

from dunlin.client.async_client import AsyncClient
from dunlin.client.errors import (
    Cancelled,
    DeadlineExceeded,
    DunlinError,
    GenerationFailed,
    InvalidRequest,
    NotAllowed,
    NotAuthenticated,
    PromptTooLong,
    QueueFull,
    QuotaExceeded,
    ServerError,
    Unavailable,
)
from dunlin.client.requests import Message, Options, Prompt
from dunlin.client.results import Generation
from dunlin.client.sync_client import Client
from dunlin.messages.batches import BatchJob, BatchList
from dunlin.messages.fleet import Explanation, FleetStatus
from dunlin.messages.public import ChatMessage, GenerateEvent, InfoReply
from dunlin.messages.types import FinishReason, RequestClass

__all__ = [
    "AsyncClient",
    "BatchJob",
    "BatchList",
    "Cancelled",
    "ChatMessage",
    "Client",
    "DeadlineExceeded",
    "DunlinError",
    "Explanation",
    "FinishReason",
    "FleetStatus",
    "GenerateEvent",
    "Generation",
    "GenerationFailed",
    "InfoReply",
    "InvalidRequest",
    "Message",
    "NotAllowed",
    "NotAuthenticated",
    "Options",
    "Prompt",
    "PromptTooLong",
    "QueueFull",
    "QuotaExceeded",
    "RequestClass",
    "ServerError",
    "Unavailable",
]
