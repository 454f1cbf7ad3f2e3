#!/usr/bin/env python3
"""make_http_json_seeds.py - writes corpus/http_json/made_* and http_json.dict.

A mutator seldom finds a field's name, so every name of the table in rpc/gateway/request.c is in the dictionary, and every shape that
is looked into has a seed that is right and some that are wrong in one place. The first byte of an input chooses the path. Run by
hand when the table changes; tests/lint checks that the dictionary has all its names.
"""
import json
import pathlib
import re

HERE = pathlib.Path(__file__).resolve().parent
CHAT, COMPLETION, TOKENIZE, DETOKENIZE, TEMPLATE = range(5)
USER = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":[1]}"}}
WORDS = ["role", "content", "text", "type", "function", "name", "arguments", "tool_calls", "tool_call_id", "include_usage", "system",
         "developer", "user", "assistant", "tool", "image_url", "input_audio", "refusal", "json_object", "json_schema", "auto", "none",
         "required", "interactive", "batch", "minimal", "high", "enable_thinking"]
VALUES = ["null", "true", "false", "[]", "{}", "-1", "0.5", "1e400", "9223372036854775807", "9223372036854775808", "[[", "{\"\":",
          "\\u0000", "\\ud800", "\\udc00", "\ufeff"]


def chat(**fields):
    return {"messages": [USER], **fields}


def said(*messages):
    return {"messages": [USER, *messages]}


RIGHT = {
    "response_format": (CHAT, chat(response_format={"type": "text"}, modalities=["text"], functions=None, audio=None)),
    "tool_rounds": (TEMPLATE, said({"role": "assistant", "tool_calls": [CALL, {"function": {"name": "g", "arguments": ""}}]},
                                   {"role": "tool", "tool_call_id": "c1", "content": "4"},
                                   {"role": "assistant", "content": "", "tool_calls": []})),
    "tools": (CHAT, chat(tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}], tool_choice="none",
                         parallel_tool_calls=True)),
    "parts": (CHAT, {"messages": [{"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}),
    "stops": (COMPLETION, {"prompt": "a", "stop": "x", "stream": True, "stream_options": {"include_usage": None}}),
    "neutral": (COMPLETION, {"prompt": "a", "n_predict": -1, "min_tokens": 0, "stop_token_ids": [], "bad_words": [], "mirostat": 0,
                             "skip_special_tokens": True, "use_beam_search": False, "dry_multiplier": 0, "xtc_probability": 0}),
    "ids": (DETOKENIZE, {"tokens": [0, 2147483647], "show_special": True, "model": "m"}),
}
WRONG = {
    "role_less": (CHAT, said({"content": "a"})),
    "message_type": (CHAT, said([])),
    "no_messages": (CHAT, {"messages": []}),
    "part_type": (CHAT, said({"role": "user", "content": ["a"]})),
    "part_image": (CHAT, said({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]})),
    "part_unknown": (CHAT, said({"role": "user", "content": [{"type": "x"}]})),
    "part_text": (CHAT, said({"role": "user", "content": [{"type": "text", "text": 1}]})),
    "message_name": (CHAT, said({"role": "user", "content": "a", "name": 1})),
    "arguments": (CHAT, said({"role": "assistant", "content": None,
                              "tool_calls": [{"function": {"arguments": "{\"a\":"}}, {"function": 1}, 2]})),
    "tools_type": (CHAT, chat(tools={})),
    "tool_type": (CHAT, chat(tools=[1])),
    "tool_forced": (CHAT, chat(tool_choice={"type": "function"})),
    "tool_required": (CHAT, chat(tool_choice="required")),
    "documents_type": (CHAT, chat(documents={})),
    "document_type": (CHAT, chat(documents=["a"])),
    "kwargs": (CHAT, chat(chat_template_kwargs=[])),
    "format_type": (CHAT, chat(response_format="json")),
    "format_json": (CHAT, chat(response_format={"type": "json_object"})),
    "format_unknown": (CHAT, chat(response_format={"type": "xml"})),
    "modalities_type": (CHAT, chat(modalities="text")),
    "modality_type": (CHAT, chat(modalities=[1])),
    "modality_audio": (CHAT, chat(modalities=["text", "audio"])),
    "unbuilt": (CHAT, chat(grammar="root ::= \"a\"")),
    "unbuilt_list": (CHAT, chat(bad_words=["a"])),
    "unbuilt_list_type": (CHAT, chat(stop_token_ids=1)),
    "usage": (CHAT, chat(stream=True, stream_options={"include_usage": 1})),
    "usage_type": (CHAT, chat(stream=True, stream_options=[])),
    "stop_item": (CHAT, chat(stop=["a", 1])),
    "stop_empty": (CHAT, chat(stop=[""])),
    "stops_many": (CHAT, chat(stop=list("abcdefghijklmnopqrstuvw"))),
    "prompts": (COMPLETION, {"prompt": ["a", "b"]}),
    "prompt_lists": (COMPLETION, {"prompt": [[1], [2]]}),
    "bias_type": (CHAT, chat(logit_bias=[1])),
    "bias_value": (CHAT, chat(logit_bias={"1": 101})),
    "n_and_best": (COMPLETION, {"prompt": "a", "n": 2, "best_of": 3}),
}


def table():
    source = (HERE / "../../rpc/gateway/request.c").read_text()
    return re.findall(r'^    \{"(\w+)", ', source[source.index("fields[] = {"):], re.M)


def quoted(word):
    """As libFuzzer reads it: it knows no escapes but these."""
    plain = word.replace("\\", "\\\\").replace('"', '\\"').encode()
    return '"' + "".join(chr(b) if 0x20 <= b < 0x7f else f"\\x{b:02x}" for b in plain) + '"'


def main():
    corpus = HERE / "corpus/http_json"
    for old in corpus.glob("made_*"):
        old.unlink()
    for name, (path, document) in {**RIGHT, **WRONG}.items():
        (corpus / f"made_{name}").write_bytes(bytes([path]) + json.dumps(document, separators=(",", ":")).encode())
    words = [f'"{w}"' for w in dict.fromkeys(table() + WORDS)] + VALUES
    (HERE / "http_json.dict").write_text("# written by make_http_json_seeds.py\n" + "".join(f"{quoted(w)}\n" for w in words))


if __name__ == "__main__":
    main()
