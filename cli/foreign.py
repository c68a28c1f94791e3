"""Flags of other tools, answered with those here, or with what is not supported yet; hyphens and underscores alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hybridgen.errors import RequestError, did_you_mean, quoted


class Peer(NamedTuple):
    """What a flag of another tool is here."""

    tool: str
    here: str
    """The flag here; "--cfg 2" sets a value, "--size WxH" takes other values than there."""


PEERS = {
    "attention-backend": Peer("xDiT", "--attention NAME"),
    "base-seed": Peer("Wan", "--seed"),
    "cfg-scale": Peer("HunyuanVideo", "--guidance"),
    "checkpoint-path": Peer("TensorRT-LLM", "--model NAME"),
    "ckpt-dir": Peer("Wan", "--model NAME"),
    "embedded-cfg-scale": Peer("HunyuanVideo", "--guidance"),
    "frame-num": Peer("Wan", "--frames"),
    "guidance-scale": Peer("diffusers", "--guidance"),
    "guidance-scale-2": Peer("diffusers", "--guidance-2"),
    "height": Peer("diffusers", "--size WxH"),
    "image-path": Peer("SGLang", "--image"),
    "img-file-path": Peer("xDiT", "--image"),
    "infer-steps": Peer("HunyuanVideo", "--steps"),
    "input-image": Peer("other tools", "--image"),
    "model-id": Peer("other tools", "--model NAME"),
    "model-path": Peer("SGLang", "--model NAME"),
    "neg-prompt": Peer("HunyuanVideo", "--negative-prompt"),
    "num-frames": Peer("diffusers", "--frames"),
    "num-gpus": Peer("SGLang", "--gpus"),
    "num-inference-steps": Peer("diffusers", "--steps"),
    "output": Peer("other tools", "--out"),
    "output-directory": Peer("xDiT", "--out FILE.mp4"),
    "output-file": Peer("other tools", "--out"),
    "output-path": Peer("SGLang", "--out FILE.mp4"),
    "precision": Peer("HunyuanVideo", "--dtype"),
    "prompt-file": Peer("other tools", "--prompt @FILE"),
    "resolution": Peer("other tools", "--size WxH"),
    "sample-guide-scale": Peer("Wan", "--guidance"),
    "sample-steps": Peer("Wan", "--steps"),
    "save-file": Peer("Wan", "--out"),
    "save-path": Peer("HunyuanVideo", "--out FILE.mp4"),
    "task": Peer("Wan", "--model NAME"),
    "torch-dtype": Peer("diffusers", "--dtype"),
    "video-length": Peer("HunyuanVideo", "--frames"),
    "video-path": Peer("other tools", "--video"),
    "video-size": Peer("HunyuanVideo", "--size WxH"),
    "width": Peer("diffusers", "--size WxH"),
}
"""Flags that exist here under another name; those of strategies are declared with the strategies."""

INSTEAD = {
    "a rank makes one clip at a time; --prompts and --count make many, --replicas several at once": "batch "
    "batch-size data-parallel-degree dp-size num-videos num-outputs-per-prompt num-videos-per-prompt",
    "weights stay on the GPUs; tp and pipefusion split them": "cpu-offload dit-cpu-offload dit-fsdp "
    "dit-layerwise-offload enable-cpu-offload enable-model-cpu-offload enable-sequential-cpu-offload fsdp offload "
    "offload-model t5-cpu t5-fsdp text-encoder-cpu-offload use-cpu-offload use-fsdp-inference",
    "the checkpoint's own scheduler settings are used": "boundary-ratio flow-shift sample-shift sample-solver "
    "scheduler shift",
    "every step is computed": "cache-backend enable-teacache teacache use-cache-dit use-fbcache use-teacache",
    "the checkpoint is run as it is, without adapters": "controlnet lora lora-path lora-scale lora-weights",
    "weights are run as the checkpoint stores them": "convert-model-dtype quant quantization quantize use-fp8 "
    "use-fp8-t5-encoder",
    "--vae N splits the decoder over ranks": "enable-slicing enable-tiling vae-tiling vae-use-slicing vae-use-tiling",
    "kernels run uncompiled": "enable-torch-compile torch-compile use-torch-compile",
    "the prompt is taken as it is": "prompt-extend use-prompt-extend",
}
LACKING = {name: instead for instead, names in INSTEAD.items() for name in names.split()}
"""Flags that have no counterpart here, and what happens instead."""


def unknown_flag(error: Any, arguments: list[str]) -> RequestError | None:
    """The error of a flag that a command does not have, with the command as it may be meant; None for other errors.

    error: what typer raises for an unknown flag; arguments: the words of the command.
    """
    name, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if not name or context is None:
        return None
    options = [param for param in context.command.params if hasattr(param, "is_flag")]
    flags = {flag: not option.is_flag for option in options for flag in (*option.opts, *option.secondary_opts)}
    help = f"{context.command_path} --help"
    if problem := _problem(name):
        here = _translated(arguments, flags)
        return RequestError("usage", "", None, problem, tries=[help if here is None else quoted(["hybridgen", *here])])
    close = did_you_mean(name, flags, cutoff=0.7)
    meant = [
        one + word.removeprefix(name) if word.partition("=")[0] == name else word for one in close for word in arguments
    ]
    tries = [quoted(["hybridgen", *meant]) if close else help]
    return RequestError("usage", name.lstrip("-"), None, "is not a flag of this command", close, tries)


def _renamed(words: list[str], flag: str, other: str) -> list[str]:
    return [other + word.removeprefix(flag) if word.partition("=")[0] == flag else word for word in words]


def peers() -> Mapping[str, Peer]:
    """All flags of other tools that have a counterpart here: as they are spelled there, and by name with hyphens."""
    from hybridgen.strategies.registry import SETTINGS

    spelled = {flag: Peer(*peer) for item in SETTINGS for flag, peer in item.peers.items()}
    return {_key(flag): peer for flag, peer in spelled.items()} | PEERS | spelled


def _key(flag: str) -> str:
    return flag.lstrip("-").replace("_", "-").lower()


def _problem(flag: str) -> str:
    """What is said of a flag; "" if no other tool is known to have it."""
    key, known = _key(flag), peers()
    if peer := known.get(flag) or known.get(key):
        whose = f"{peer.tool}'" if peer.tool.endswith("s") else f"{peer.tool}'s"
        return f"{whose} {flag} is {peer.here} here"
    return f"{flag} is not supported yet: {LACKING[key]}" if key in LACKING else ""


def _translated(arguments: list[str], flags: Mapping[str, bool]) -> list[str] | None:
    """The words of a command with all flags of other tools replaced; None where a value cannot be translated.

    flags: the command's own flags, and whether they take a value.
    """
    found, known, pixels, words = list[str](), peers(), dict[str, str](), list(arguments)
    while words:
        word = words.pop(0)
        flag, equals, value = word.partition("=")
        key = _key(flag)
        if flag in flags or not flag.startswith("--") or not _problem(flag):
            found += [word, *(words.pop(0) for _ in words[: flags.get(word, False)])]
            continue
        if not equals and words and not words[0].startswith("-"):
            value = words.pop(0)
        if key in ("width", "height"):
            pixels[key] = value
        elif key in known:
            here, *fixed = known[key].here.split()
            if here not in flags or not (fixed or [value])[0] or (fixed and not fixed[0].isdecimal()):
                return None
            found += [here, *(fixed or [value])]
    if pixels and len(pixels) < 2:
        return None
    return [*found, "--size", f"{pixels['width']}x{pixels['height']}"] if pixels else found
