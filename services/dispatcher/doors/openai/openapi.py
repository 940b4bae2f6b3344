"""The OpenAPI document of the HTTP door: its requests and responses, with the limits that the checks use.

Client generators and fuzzers read it. Knows no HTTP server.
"""

from collections.abc import Mapping

import dunlin
from dunlin.limits import MOST_NAME_CHARACTERS
from services.dispatcher.doors.openai.fields import CHAT_FIELDS, COMPLETION_FIELDS, FieldSupport, RequestField
from services.dispatcher.doors.openai.schemas import Json


def openapi_document() -> Json:
    """The document, OpenAPI 3.1, as JSON."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "dunlin", "version": dunlin.__version__, "license": {"name": "Apache-2.0"}},
        "paths": {
            "/v1/models": {"get": _get("The model that is served, and its adapters.", "models")},
            "/v1/models/{model}": {"get": _get("One model.", "model", _path("model"), 404)},
            "/v1/completions": {"post": _post("Continue a text.", "CompletionRequest", "completion")},
            "/v1/chat/completions": {"post": _post("Answer a conversation.", "ChatRequest", "chat completion")},
            **_batch_paths(),
            "/health": {"get": _get("Whether an instance can serve.", "health", (), 503)},
            "/metrics": {"get": _text("Counters for Prometheus.")},
            "/version": {"get": _get("The version that runs.", "version")},
        },
        "components": {
            "schemas": {
                "CompletionRequest": _request(COMPLETION_FIELDS, "prompt"),
                "ChatRequest": _request(CHAT_FIELDS, "messages"),
                "Error": ERROR_SCHEMA,
            },
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _batch_paths() -> Json:
    file, batch = _path("file"), _path("batch")
    upload = _with_body("Upload a file of requests.", "file", "multipart/form-data", UPLOAD_SCHEMA)
    create = _with_body("Begin a batch.", "batch", "application/json", BATCH_SCHEMA)
    deleted = _get("Delete a file.", "deleted file", file, 400, 404)
    content = _get("The content of a file.", "content", file, 404)
    content["responses"]["200"] = {"description": "The lines.", "content": {"application/octet-stream": {}}}
    paths = {
        "/v1/files": {"get": _get("Uploaded files.", "files"), "post": upload},
        "/v1/files/{file}": {"get": _get("One file.", "file", file, 404), "delete": deleted},
        "/v1/files/{file}/content": {"get": content},
        "/v1/batches": {"get": _get("Batches, newest first.", "batches"), "post": create},
        "/v1/batches/{batch}": {"get": _get("One batch.", "batch", batch, 404)},
        "/v1/batches/{batch}/cancel": {"post": _get("Cancel a batch.", "batch", batch, 400, 404)},
    }
    for operations in paths.values():
        for operation in operations.values():
            operation["security"] = [{}, {"key": []}]
            for status in (401, 403, 503):
                operation["responses"][str(status)] = _json(STATUS_TEXTS[status], ERROR_REFERENCE)
    return paths


def _with_body(summary: str, what: str, kind: str, schema: Json) -> Json:
    operation = _get(summary, what, (), 400, 404, 408, 413, 415, 429)
    return {**operation, "requestBody": {"required": True, "content": {kind: {"schema": schema}}}}


ERROR_REFERENCE: Json = {"$ref": "#/components/schemas/Error"}
UPLOAD_SCHEMA: Json = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {"file": {"type": "string", "format": "binary"}, "purpose": {"enum": ["batch"]}},
}
BATCH_SCHEMA: Json = {
    "type": "object",
    "required": ["input_file_id", "endpoint", "completion_window"],
    "properties": {
        "input_file_id": {"type": "string"},
        "endpoint": {"enum": ["/v1/chat/completions", "/v1/completions"]},
        "completion_window": {"type": "string", "pattern": "^[0-9]{1,9}[smhd]$"},
        "metadata": {
            "anyOf": [
                {"type": "object", "maxProperties": 16, "additionalProperties": {"type": "string", "maxLength": 512}},
                {"type": "null"},
            ]
        },
    },
    "additionalProperties": False,
}
ERROR_SCHEMA: Json = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def _request(fields: Mapping[str, RequestField], required: str) -> Json:
    """The schema of a request body. Fields that are refused whatever their value are left out, and forbidden by it."""
    accepted = {
        name: {**one.schema, "description": one.description}
        for name, one in fields.items()
        if one.support != FieldSupport.REFUSED
    }
    return {
        "type": "object",
        "required": [required],
        "properties": {name: schema if name == required else _or_null(schema) for name, schema in accepted.items()},
        "additionalProperties": False,
    }


def _or_null(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


def _get(summary: str, what: str, parameters: tuple[Json, ...] = (), *errors: int) -> Json:
    operation: Json = {"summary": summary, "responses": {"200": _json(f"The {what}.", {"type": "object"})}}
    for status in errors:
        operation["responses"][str(status)] = _json(STATUS_TEXTS[status], {"type": "object"})
    return {**operation, "parameters": list(parameters)} if parameters else operation


def _path(name: str) -> tuple[Json, ...]:
    return ({"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}},)


def _text(summary: str) -> Json:
    return {"summary": summary, "responses": {"200": {"description": "Text.", "content": {"text/plain": {}}}}}


STATUS_TEXTS = {
    400: "The request cannot be taken; `param` names the field.",
    401: "The API key is missing or unknown.",
    403: "The tenant may not do this.",
    404: "There is no such model, file or batch.",
    408: "The body did not come in time.",
    409: "The idempotency key belongs to a request that cannot be joined.",
    413: "The body is too large.",
    415: "The body's encoding is not known.",
    422: "The idempotency key belongs to another request.",
    429: "Too much is waiting, or a quota is spent; Retry-After says when to come back.",
    499: "The request was cancelled.",
    500: "The request was given up.",
    503: "No instance can serve just now; Retry-After says when to come back.",
    504: "The deadline passed.",
}


IDEMPOTENCY_HEADER: Json = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "The tenant's own name for this request: sent again with the same body, it gets the same answer.",
    "schema": {"type": "string", "pattern": "^[ -~]*$", "maxLength": MOST_NAME_CHARACTERS},
}


def _post(summary: str, schema: str, what: str) -> Json:
    body = {"$ref": f"#/components/schemas/{schema}"}
    refusals = {str(code): _json(text, {"$ref": "#/components/schemas/Error"}) for code, text in STATUS_TEXTS.items()}
    done = _json(f"The {what}; with stream: true, server-sent events that end with [DONE].", {"type": "object"})
    done["content"]["text/event-stream"] = {}
    return {
        "summary": summary,
        "security": [{}, {"key": []}],
        "parameters": [IDEMPOTENCY_HEADER],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {"200": done, **refusals},
    }


def _json(text: str, schema: Json) -> Json:
    return {"description": text, "content": {"application/json": {"schema": schema}}}
