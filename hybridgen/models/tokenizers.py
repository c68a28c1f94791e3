"""The tokenizers that a checkpoint may have, and one look at their words and chat templates. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hybridgen.models import headers
from hybridgen.models.files import Config, Folder
from hybridgen.models.headers import Unreadable
from hybridgen.models.keys import Key, Table, absent, number, only, switch, text
from hybridgen.models.parts import Part

TOKEN = Key(str, default=None, may_be_null=True, may_be_object=True)
NAMED = tuple(f"{name}_token" for name in ("pad", "eos", "bos", "unk", "sep", "cls", "mask"))
SIDE = only("left", "right", default="right")
KEYS: Table = {
    **dict.fromkeys(NAMED, TOKEN),
    "additional_special_tokens": TOKEN._replace(length=(0, 100_000)),
    "extra_special_tokens": TOKEN._replace(length=(0, 100_000)),
    "model_max_length": number(1, 1e31, 1e30, null=True),
    "tokenizer_class": text(),
    "added_tokens_decoder": Key(str, default=None, may_be_object=True, named=True, length=(0, 1_000_000)),
    "tokenizer_object": absent(),
    "model_input_names": Key(str, default=None, length=(0, 100)),
    "init_inputs": Key(str, default=None, length=(0, 100)),
    "model_specific_special_tokens": absent(),
    "split_special_tokens": switch(False),
    "padding_side": SIDE,
    "truncation_side": SIDE,
}
T5, QWEN = ("T5Tokenizer", "T5TokenizerFast"), ("Qwen2Tokenizer", "Qwen2TokenizerFast")
USUAL: Mapping[str, Mapping[str, str]] = {
    **{kind: {"pad_token": "<pad>", "eos_token": "</s>"} for kind in T5},
    **{kind: {"pad_token": "<|endoftext|>", "eos_token": "<|endoftext|>"} for kind in QWEN},
}
"""Tokens that a class takes where the configuration names none."""
LARGEST = 200_000_000
"""Bytes of a tokenizer's file; those of large vocabularies have 20,000,000."""
LOOPS = 100
"""Numbers of a range that a template counts through here, so that it comes to an end."""
WORDS = "a red circle moves right"


def look_at(folder: Folder, component: str, config: Config, kind: str, needs: Sequence[str], content: object) -> None:
    """Look at a tokenizer of the class `kind`. Raises RequestError (unreadable-model)."""
    named = {name: token for name in NAMED if (token := _token(config.get(name))) is not None}
    named = {**USUAL.get(kind, {}), **_mapped(folder, component), **named}
    named = {name: token for name, token in named.items() if name not in config or config[name] is not None}
    words = vocabulary(folder, component)
    if words is None and find_spec("sentencepiece") is None:
        problem = (
            f"{component} has no tokenizer.json, and its spiece.model is read by sentencepiece, which is not installed"
        )
        raise folder.refused(problem, "a checkpoint with tokenizer.json, or pip install sentencepiece")
    for need in needs:
        token = named.get(need) if need in NAMED else need
        if token is None:
            raise folder.refused(f"{component} has no {need}, and prompts are encoded with it")
        if words is not None and token not in words:
            what = f"its {need} {ascii(token)[:40]}" if need in NAMED else ascii(token)
            raise folder.refused(f"{component}: {what} is not in its vocabulary")
    template = config.get("chat_template")
    if isinstance(template, list) and not all(
        isinstance(one, dict) and {"name", "template"} <= one.keys() for one in template
    ):
        raise folder.refused(f"{component} has a list of chat templates without their names")
    if content is not None:
        _fill_in(folder, component, _template(folder, component, config), content, named)


def check_rows(folder: Folder, component: str, rows: int) -> None:
    """Raise RequestError (unreadable-model) where a tokenizer makes ids beyond the rows of the embedding."""
    words = vocabulary(folder, component)
    if words and (most := max(words.values())) >= rows:
        problem = f"{component} makes token ids up to {most}, and the embedding of its text encoder has {rows} rows"
        raise folder.refused(problem)


def vocabulary(folder: Folder, component: str) -> Mapping[str, int] | None:
    """The words of a tokenizer, with their ids; None where only the code of SentencePiece could tell."""
    for name in ("tokenizer.json", "vocab.json"):
        path = folder.path / component / name
        if path.exists():
            try:
                size, changed = headers.check_fetched(path), path.stat().st_mtime_ns
                return _words(path, size, changed)
            except (Unreadable, OSError) as fault:
                raise folder.refused(f"{component}/{name} {fault}") from fault
    return None


@lru_cache(maxsize=8)
def _words(path: Path, size: int, changed: int) -> Mapping[str, int]:
    """The words of a file; the same size and time of change mean the same file. Raises Unreadable."""
    if size > LARGEST:
        raise Unreadable(f"is too large ({size} bytes)")
    try:
        if path.name == "tokenizer.json":
            from tokenizers import Tokenizer

            return Tokenizer.from_file(str(path)).get_vocab(with_added_tokens=True)
        found = json.loads(path.read_bytes())
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # what tokenizers raises is an Exception, or a panic of its Rust
        raise Unreadable(f"is not a tokenizer ({ascii(str(error))[1:-1][:120]})") from error
    if not isinstance(found, dict) or not all(type(number) is int for number in found.values()):
        raise Unreadable("does not hold words with their ids")
    return found


def _token(value: Any) -> str | None:
    """A token as a configuration has it: text, or an object with text."""
    found = value.get("content") if isinstance(value, dict) else value
    return found if isinstance(found, str) else None


def _mapped(folder: Folder, component: str) -> dict[str, str]:
    """Tokens that are named in the file beside the configuration which older versions wrote."""
    name = f"{component}/special_tokens_map.json"
    if not (folder.path / name).exists():
        return {}
    content = folder.json(name)
    return {key: token for key in NAMED if (token := _token(content.get(key))) is not None}


def _template(folder: Folder, component: str, config: Config) -> str:
    """The chat template that transformers takes."""
    beside = folder.path / component
    if (path := beside / "chat_template.jinja").exists():
        return path.read_text(encoding="utf-8")
    found = config.get("chat_template")
    if (beside / "chat_template.json").exists():
        found = folder.json(f"{component}/chat_template.json").get("chat_template")
    if isinstance(found, list):
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    if not isinstance(found, str):
        raise folder.refused(f"{component} has a chat template that is not text")
    return found


def _fill_in(folder: Folder, component: str, template: str, content: object, named: Mapping[str, str]) -> None:
    """Fill in a chat template with a prompt as the pipelines do. Raises RequestError (unreadable-model)."""
    messages = [{"role": role, "content": content} for role in ("system", "user")]
    given = {"messages": messages, "tools": None, "documents": None, "add_vision_id": False, **named}
    try:
        said = _environment().from_string(template).render(add_generation_prompt=content is WORDS, **given)
    except Exception as error:  # whatever the code in a template does
        words = ascii(f"{type(error).__name__}: {error}")[1:-1][:120]
        raise folder.refused(f"{component}: its chat template cannot be filled in ({words})") from error
    if WORDS not in said:
        raise folder.refused(f"{component}: its chat template leaves out the prompt")


def _environment() -> Any:
    """A sandbox for templates with what transformers offers them."""
    from datetime import datetime

    from jinja2 import TemplateError
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The tag that marks what a model has said."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def as_json(value: Any, **options: Any) -> str:
        return json.dumps(value, **{"ensure_ascii": False, **options})

    extensions = [Generation, "jinja2.ext.loopcontrols"]
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    made.filters["tojson"] = as_json
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    made.globals["range"] = lambda *ends: range(*ends)[:LOOPS]
    return made


def tokenizer(*classes: str, needs: Sequence[str], content: object = None) -> Part:
    """A tokenizer.

    needs: tokens that it must have, as they are named in its configuration or as they are.
    content: WORDS in the form in which a prompt is given to its chat template; None where it has no use for one.
    """
    names = (*classes, "TokenizersBackend", "PreTrainedTokenizerFast", "AutoTokenizer")
    files: list[tuple[str, ...]] = [("tokenizer.json", "spiece.model", "vocab.json")]
    if content is not None:
        files.append(("chat_template.jinja", "chat_template.json"))
    look = partial(look_at, needs=needs, content=content)
    return Part("transformers", names, "tokenizer_config.json", KEYS, weighted=False, files=tuple(files), look=look)


T5_TOKENIZER = tokenizer(*T5, needs=["pad_token"])
QWEN_TOKENIZER = partial(tokenizer, *QWEN)
