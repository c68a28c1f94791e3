"""A plan as text: its head, the mesh as a grid of ulysses groups, and a table of its axes."""

from __future__ import annotations

from hybridgen.cli.text import paragraph, ranks, size, table
from hybridgen.errors import counted
from hybridgen.plan.layout import Layout
from hybridgen.plan.plan import Plan
from hybridgen.plan.traffic import Message, by_strategy
from hybridgen.planner.price.memory import fullest, phase_sizes
from hybridgen.strategies import registry

MAX_GRID = 12
"""Most rows or columns of a grid that is drawn whole."""
WIDTH = 100


def head(plan: Plan) -> list[str]:
    """The head: what will be made and how, in three lines; PipeFusion and options of strategies have more."""
    clip, facts, tokens = plan.clip, plan.facts, plan.tokens
    guided = f"guidance {clip.guidance:g}" if plan.branches == 2 else "no guidance"
    if plan.branches == 2 and len(set(clip.guidances)) == 2:
        guided += f" / {clip.guidances[1]:g}"
    shares = counted(tokens.tokens, "token")
    if tokens.shards > 1:
        shares += f" over {tokens.shards} ranks, {tokens.shard_size * tokens.patches} each"
    heads = plan.heads[0] // plan.degrees.ulysses
    length = f"{counted(clip.frames, 'frame')} at {clip.fps} fps = {clip.frames / clip.fps:.2f} s"
    lines = [
        f"{facts.name}  {clip.width}x{clip.height}, {'one frame' if clip.frames == 1 else length}, "
        f"{counted(clip.steps, 'step')}, {guided}, {plan.dtype}",
        f"plan    {plan.degrees}     {ranks(plan.world_size)}     {'exact' if plan.exact else 'approximate'}",
        f"split   {shares}; {counted(facts.transformer.heads, 'head')}"
        + (f", {heads} each" if heads != facts.transformer.heads else ""),
    ]
    if plan.degrees.pipefusion > 1:
        lines.append(pipeline(plan))
    if given := plan.given_options():
        lines.append("with    " + ", ".join(f"{name} {value}" for name, value in given.items()))
    return lines


def pipeline(plan: Plan) -> str:
    """The line of PipeFusion: its stages, patches and synchronous steps."""
    sizes, tokens, synchronous = plan.stage_sizes, plan.tokens, min(plan.option("warmup"), plan.clip.steps)
    blocks = f"{sizes[0]} each" if len(set(sizes)) == 1 else " + ".join(map(str, sizes))
    steps = "the first step of every expert" if synchronous == 1 else f"the first {synchronous} of every expert"
    if plan.exact_split:
        steps = "every step"
    return (
        f"stages  {len(sizes)}, blocks {blocks}; {tokens.patches} patches of {tokens.patch_size} tokens; "
        f"{steps} synchronous"
    )


def mesh(plan: Plan) -> list[str]:
    """The ranks as grids: one cell is one ulysses group, one grid one cfg half, stage and tp slice."""
    layout = plan.layout
    used = [axis for axis in plan.order if plan.degrees.size(axis) > 1]
    if not used:
        return []
    sizes = " x ".join(f"{axis} {plan.degrees.size(axis)}" for axis in used)
    fastest = f", {used[-1]} fastest" if len(used) > 1 else ""
    lines = [f"mesh: {sizes} = {ranks(plan.world_size)}{fastest}", ""]
    for outer in _places(layout, "apart"):
        blocks = [_block(layout, {**outer, **half}) for half in _places(layout, "beside")]
        together = [_beside(blocks)] if sum(len(b[0]) for b in blocks) + 4 * len(blocks) <= WIDTH else blocks
        for block in together:
            lines += [*block, ""]
    return lines


Places = dict[str, int]
"""Coordinates by axis."""


def _drawn(layout: Layout, kind: str) -> list[str]:
    """Axes in use that are drawn in this way, slowest first."""
    degrees = layout.degrees
    return [name for name in degrees.default_order if degrees.axes[name].drawn == kind and degrees.size(name) > 1]


def _places(layout: Layout, kind: str) -> list[Places]:
    """All coordinates on the axes that are drawn in this way."""
    places: list[Places] = [{}]
    for axis in _drawn(layout, kind):
        places = [{**p, axis: i} for p in places for i in range(layout.degrees.size(axis))]
    return places


def _title(layout: Layout, place: Places) -> str:
    """Coordinates in words: "tp 1, cfg 0: with prompt"."""
    members = {axis: layout.degrees.axes[axis].members for axis in place}
    return ", ".join(f"{axis} {i}" + (f": {members[axis][i]}" if members[axis] else "") for axis, i in place.items())


def _block(layout: Layout, outer: Places) -> list[str]:
    """The lines of one grid, all equally wide."""
    down, across = _places(layout, "down"), _places(layout, "across")
    rows, columns = _shown(down), _shown(across)
    cells = [[_cell(layout, {**outer, **row, **column}) for column in columns] for row in rows]
    label, top = ([_title(layout, place) for place in places] for places in (rows, columns))
    width = max(len(text) for line in [top, *cells] for text in line)
    side = max(map(len, label))
    lines = [" " * side + "  " + _title(layout, outer)] if outer else []
    lines += [" " * side + "".join(f"  {text:<{width}}" for text in top)] if any(top) else []
    lines += [
        f"{name:<{side}}" + "".join(f"  {text:<{width}}" for text in line)
        for name, line in zip(label, cells, strict=True)
    ]
    if hidden := len(down) * len(across) - len(rows) * len(columns):
        lines.append(f"{'':<{side}}  ... {hidden} more groups by the same rule")
    wide = max(map(len, lines))
    return [line.ljust(wide) for line in lines]


def _shown(places: list[Places]) -> list[Places]:
    return places if len(places) <= MAX_GRID else [*places[:2], places[-1]]


def _cell(layout: Layout, place: Places) -> str:
    """The ranks of one group inside a cell, as a range where they follow each other."""
    group = layout.group(layout.rank(place), _drawn(layout, "inside"))
    digits = len(str(layout.world_size - 1))
    if len(group) == 1:
        return f"{group[0]:>{digits}}"
    if group == [*range(group[0], group[-1] + 1)]:
        return f"{group[0]:>{digits}}-{group[-1]:>{digits}}"
    shown = group if len(group) <= 4 else [*group[:2], -1, group[-1]]
    return " ".join(".." if rank < 0 else f"{rank:>{digits}}" for rank in shown)


def _beside(blocks: list[list[str]]) -> list[str]:
    return ["    ".join(lines).rstrip() for lines in zip(*blocks, strict=True)]


def axes(plan: Plan) -> list[str]:
    """The table of axes in use: size, an example, what each exchanges and how much rank 0 sends."""
    messages, degrees = registry.traffic(plan, 0), plan.degrees
    placed = reversed(degrees.default_order)
    overlaid = (axis.name for axis in degrees.axes.values() if axis.place is None)
    rows = [_axis_row(plan, name, messages) for name in (*placed, *overlaid) if degrees.size(name) > 1]
    if not rows:
        return []
    return table(
        ("axis", "ranks of a group", "exchanges", "size", "sends / step", "sends / clip"),
        rows,
        ("size", "sends / step", "sends / clip"),
    )


def _axis_row(plan: Plan, name: str, messages: list[Message]) -> list[str]:
    axis, own = plan.degrees.axes[name], [m for m in messages if m.axis == name]
    example = plan.layout.overlay(name) if axis.place is None else plan.layout.group(0, [name])
    shown = " ".join(map(str, example)) if len(example) <= 6 else f"{example[0]} {example[1]} .. {example[-1]}"
    total = sum(message.total for message in own)
    outside = own and not any(message.phase == "denoise" for message in own)
    step = "at the end" if outside else size(total / plan.clip.steps)
    return [name, shown, axis.exchanges, str(plan.degrees.size(name)), step, size(total)]


def sends(plan: Plan) -> list[str]:
    """The table of what rank 0 sends in the whole clip, by strategy."""
    totals = by_strategy(registry.traffic(plan, 0))
    if not totals:
        return []
    return ["rank 0 sends  " + ", ".join(f"{name} {size(n)}" for name, n in totals.items())]


def memory(plan: Plan) -> list[str]:
    """The memory estimate of the fullest rank, without what the machine itself takes."""
    rank, held = fullest(plan)
    parts = ", ".join(f"{term.name} {size(term.size)}" for term in held)
    peak = size(max(phase_sizes(held).values()))
    about = f"{peak} at the peak on rank {rank}, the fullest, without context, kernels and allocator"
    return paragraph("memory", f"{about}; not all at once: {parts}")


def whole(plan: Plan) -> list[str]:
    """The page that --dry-run shows."""
    lines = head(plan)
    for part in (mesh(plan), axes(plan), sends(plan) + memory(plan)):
        if part:
            lines += ["", *part] if lines[-1] else part
    return lines
