"""The work of one rank: from an empty process to the end of a clip, or of many."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from socket import gethostname
from textwrap import shorten

import torch
import torch.distributed as dist
from torch import Tensor

from hybridgen.distributed.attention import serving
from hybridgen.distributed.processes import RankContext
from hybridgen.distributed.sequence import Shard
from hybridgen.engine.control import Cancelled, Orders
from hybridgen.engine.decode import decode, decode_guarded, digest_of, latents_kept, read_latents
from hybridgen.engine.denoise import denoise, gather_latents
from hybridgen.engine.job import Job
from hybridgen.engine.rank import Rank, quiet_libraries, set_up
from hybridgen.engine.report import Report
from hybridgen.engine.timing import Prediction, RankTimes, held
from hybridgen.errors import PREEMPTED, RunFailed, counted
from hybridgen.models.autoencoder import check_finite
from hybridgen.models.denoiser import Denoiser
from hybridgen.models.guardrail import RULE, Guardrail, blocked
from hybridgen.models.inputs import Encoder, Inputs
from hybridgen.models.load import empty_experts, fill, load_autoencoder, load_scheduler, local_folder
from hybridgen.models.registry import family_of, guardrail_of
from hybridgen.strategies import registry

SHARED = (RULE, PREEMPTED)
"""Rules of errors that all ranks raise at the same place, after which they are as before the clip."""


def work(context: RankContext, job: Job) -> Report:
    """Make one clip on this rank, and end; returns the report of rank 0."""
    started = time.perf_counter()
    quiet_libraries()
    rank = set_up(context, job)
    report = make(rank, started)
    leave(rank)
    return report


def stay(context: RankContext, orders: Orders | None = None) -> None:
    """Make clip after clip on this rank, all with the model that the first one loads.

    orders: where they come from; by default from the launcher on this machine.

    What all ranks find wrong with a clip ends that clip; any other error ends the rank.
    """
    quiet_libraries()
    orders, rank = orders or Orders(context), None
    for job in orders.jobs():
        started = time.perf_counter()
        if rank is None:
            rank = set_up(context, job, orders)
        else:
            rank.begin(job)
        try:
            orders.say("done", make(rank, started))
        except Cancelled:
            rank.memory.close()
            orders.say("cancelled")
        except RunFailed as failure:
            if failure.rule not in SHARED:
                raise
            rank.memory.close()
            orders.say("failed", (failure.rule, failure.message))
    if rank is not None:
        leave(rank)


@torch.no_grad()
def make(rank: Rank, started: float) -> Report:
    """Make the rank's clip; returns the report of rank 0. Raises Cancelled and RunFailed.

    started: when that began, as time.perf_counter() has it.
    """
    job = rank.job
    guardrail = guard(rank)
    model = ready(rank) if job.source is None else ready_to_decode(rank)
    if job.source is None:
        latents = gather_latents(rank, model, denoise(rank, model))
    else:
        latents = read_latents(rank, job.source)
    if latents is not None:
        check_finite(latents, "numbers of the final latents")
    digest = digest_of(latents) if latents is not None else ""
    if job.plan.facts.guarded:
        decode_guarded(rank, model, latents, digest, guardrail)
    else:
        with latents_kept(rank, latents, digest):
            decode(rank, model, latents, digest)
    return finish(rank, digest, started)


def guard(rank: Rank) -> Guardrail | None:
    """The guardrail on rank 0, if the model has one, after it allowed the prompt. Raises RunFailed on all ranks."""
    facts = rank.job.plan.facts
    guardrail = guardrail_of(facts)
    if guardrail is None:
        return None
    allowed = False
    if rank.first:
        if rank.held.guardrail is None:
            with rank.stage("load the guardrail", "load", mapped=True):
                rank.held.guardrail = guardrail(rank.device)
        with rank.stage("check the prompt", "encode"):
            allowed = rank.held.guardrail.allows(rank.job.prompt)
    if not rank.broadcast_object(allowed):
        raise blocked(facts.name, "the prompt")
    return rank.held.guardrail


def ready(rank: Rank) -> Denoiser:
    """Prepare this rank's part of the model with the request's inputs."""
    plan = rank.job.plan
    is_new = not rank.held.experts
    inputs = encode(rank) if rank.first else None  # before the transformers are here, so that both need not fit
    with rank.stage("load", mapped=is_new):
        model = load(rank)
    condition = encode_frames(rank, model)
    if inputs is not None:
        inputs.condition = condition
    model.set_inputs(share(rank, inputs))
    if is_new:
        with rank.stage("load", mapped=True):
            fill(model.experts, plan, local_folder(plan.facts), rank.device)  # what the inputs did not need
    if rank.first:
        rank.progress.stage("load", f"{plan.degrees}", rank.seconds["load"])
        rank.progress.stage("encode", counted(plan.branches, "prompt"), rank.seconds["encode"])
    return model


def ready_to_decode(rank: Rank) -> Denoiser:
    """Prepare this rank's part of the model for decoding alone: the transformers have no weights."""
    job, plan = rank.job, rank.job.plan
    folder = local_folder(plan.facts)
    with rank.stage("load", mapped=True):
        kind, shard = family_of(plan.facts).denoiser(plan.facts), Shard(plan.tokens, rank.context.rank)
        model = kind(plan, empty_experts(plan, folder), load_scheduler(folder), job.kernel, shard)
        if rank.mesh.is_on("vae"):
            model.vae = load_autoencoder(plan.facts, folder, rank.device)
        apply_strategies(rank, model)
    return model


def encode(rank: Rank) -> Inputs:
    """Encode text and images; the encoders are freed afterwards where no further clips need them."""
    plan, job, held = rank.job.plan, rank.job, rank.held
    if held.encoder is None:
        with rank.stage("load text encoder", "load", mapped=True):
            kind = family_of(plan.facts).denoiser(plan.facts)
            held.encoder = kind.encoder(plan, local_folder(plan.facts), rank.device)
    with rank.stage("encode"):
        held.encoder.wake(plan)
        inputs = held.encoder.encode(job.prompt, job.negative_prompt, job.inputs.images)
        warn_of_cuts(rank, held.encoder)
        if rank.control.stays:
            held.encoder.rest()
        else:
            held.encoder.free()
            held.encoder = None
    return inputs


def warn_of_cuts(rank: Rank, encoder: Encoder) -> None:
    """Warn of prompts that are longer than what the model reads, with the words from which on they are not read."""
    plan, job = rank.job.plan, rank.job
    prompts = {"prompt": job.prompt, "negative-prompt": job.negative_prompt if plan.branches > 1 else ""}
    for flag, text in prompts.items():
        if rest := encoder.left_out(text):
            limit = f"{plan.facts.name} reads {plan.facts.text_tokens} tokens"
            rank.warn(f"--{flag} is too long: {limit}, and does not see {shorten(rest, 60, placeholder=' ...')!r}")


def load(rank: Rank) -> Denoiser:
    """What this rank runs for its clip: its part of the transformers, with strategies applied, and the VAE where it
    decodes.

    The first clip loads them, and only the weights that take the inputs. All state of the clip hangs on the model that
    is returned, and nothing of an earlier clip does.
    """
    job, plan, held = rank.job, rank.job.plan, rank.held
    folder, is_new = local_folder(plan.facts), not held.experts
    shard = Shard(plan.tokens, plan.layout.sequence_index(rank.context.rank))
    kind = family_of(plan.facts).denoiser(plan.facts)
    if is_new:
        held.experts = empty_experts(plan, folder)
    model = kind(plan, held.experts, load_scheduler(folder), job.kernel, shard)
    model.stays = rank.control.stays
    apply_strategies(rank, model)  # before the weights are read, so that a rank reads its part only
    if is_new:
        fill(model.experts, plan, folder, rank.device, model.needed_for_inputs)
        held.vae = load_autoencoder(plan.facts, folder, rank.device) if rank.mesh.is_on("vae") else None
    if held.vae is not None:
        model.vae = held.vae
    return model


def apply_strategies(rank: Rank, model: Denoiser) -> None:
    """Change the loaded model as the plan says, in the registry's order."""
    for strategy in registry.active(rank.job.plan):
        strategy.apply(model, rank.mesh, rank.job.plan)


def encode_frames(rank: Rank, model: Denoiser) -> Tensor | None:
    """Encode conditioning frames on the VAE's ranks together; rank 0 gets the result."""
    job = rank.job
    if not job.plan.clip.encoded_frames or not rank.mesh.is_on("vae"):
        return None
    with rank.stage("encode the image", "encode"):
        moments = model.slots.encode(
            model.frames_to_encode(list(job.inputs.images)).to(rank.device) if rank.first else None
        )
    if moments is None:
        return None
    return model.condition_latents(moments, torch.Generator("cpu").manual_seed(job.seed))


def share(rank: Rank, inputs: Inputs | None) -> Inputs:
    """Broadcast rank 0's inputs to every rank."""
    if rank.job.plan.world_size == 1:
        assert inputs is not None
        return inputs
    rank.set_status("waiting for the text embeddings", waits=True)
    tensors = inputs.tensors() if inputs is not None else {}
    said = {name: (list(x.shape), str(x.dtype).removeprefix("torch.")) for name, x in tensors.items()}
    for name, (shape, dtype) in rank.mesh.world().broadcast_object(said).items():
        own = tensors.get(name)
        kind: torch.dtype = getattr(torch, dtype)
        x = torch.empty(shape, dtype=kind, device=rank.device) if own is None else own.contiguous()
        tensors[name] = rank.mesh.world().broadcast(x)
    return Inputs.of(tensors)


def finish(rank: Rank, digest: str, started: float) -> Report:
    """Collect every rank's times, traffic and memory in rank 0's report, and give it to all."""
    rank.set_status("finish")
    world, times = rank.mesh.world(), RankTimes.of(gethostname(), rank.steps, rank.waits)
    mine = {"traffic": dict(rank.mesh.traffic.sent), "memory": rank.memory.close(), "times": asdict(times)}
    everyone = (world.gather_objects(mine) if rank.context.world > 1 else []) or [mine]
    ranks = [RankTimes(**one["times"]) for one in everyone] if rank.steps else []
    prediction = compare(rank, ranks)
    if prediction.warning:
        rank.warn(prediction.warning)
    rank.seconds["total"] = time.perf_counter() - started
    made = rank.job.report(rank.seconds, rank.steps, everyone, digest, rank.warnings, ranks, prediction)
    report: Report = rank.broadcast_object(made)
    return report


def compare(rank: Rank, ranks: Sequence[RankTimes]) -> Prediction:
    """On rank 0, what was measured beside what was predicted."""
    plan, prediction = rank.job.plan, rank.job.prediction
    if not rank.first or not ranks:
        return prediction
    kernel = serving(rank.job.kernel, plan.attention_heads, plan.facts.transformer.head_dim, plan.dtype, rank.device)
    return held(prediction, ranks, [len(plan.blocks(one)) for one in range(len(ranks))], kernel)


def leave(rank: Rank) -> None:
    """Leave the other ranks, all together."""
    if rank.context.world > 1:
        rank.set_status("finish")
        rank.mesh.world().barrier()
        dist.destroy_process_group()
