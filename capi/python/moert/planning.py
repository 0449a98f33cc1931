"""Decides what takes the place of which module of a transformers model, where its experts come
from, and who routes. Nothing is replaced before all of it is known to fit."""
import logging
import pathlib
import typing

from . import (_c, agreement, blocks, checkpoint_experts, expert_forms, own_products, pack_cache,
               quantized_tensors, tensor_files)
from .checkpoint_experts import CheckpointExperts, Layer
from .distributed import Ranks
from .errors import Error
from .parameters import Parameters
from .source import Source
from .tools import ToolError

_log = logging.getLogger("moert")


class Plan(typing.NamedTuple):
    """routing: "library", "host", or "own": the host routes, and the model's own code multiplies
    (own_products). values: of each block how many its forward returns; identities: of each the first
    id whose expert passes its input through, or None; own: own_products.Experts of each layer, parts
    those of its records."""
    found: list
    source: Source
    routing: str
    ranks: typing.Optional[Ranks]
    values: list = ()
    identities: list = ()
    own: list = ()
    parts: list = ()


class _Checkpoint:
    """A folder as the experts of a model."""

    def __init__(self, model, found, folder, files):
        self.model, self.found, self.folder = model, found, pathlib.Path(folder)
        self.files = [pathlib.Path(f) for f in files or tensor_files.of_folder(folder)]
        self.quantization = pack_cache.quantization(folder)
        self._parameters, self._forms = None, {}

    @property
    def parameters(self):
        if self._parameters is None:
            tensors = quantized_tensors.open_files(self.files, self.quantization or {})
            self._parameters = Parameters(self.model, tensors)
        return self._parameters

    def layout(self, block):
        try:
            return expert_forms.layout(block.module.experts)
        except ValueError as error:
            raise ValueError(f"{block.name}: {type(block.module.experts).__name__} cannot be given "
                             f"to libmoert by its structure: {error}") from error

    def form(self, block, lay):
        experts = block.module.experts
        numbers = tuple(sorted((name, value) for name, value in vars(experts).items()
                               if isinstance(value, (int, float))))
        act = getattr(experts, "act_fn", None)
        key = type(experts), lay, numbers, type(act), getattr(act, "__name__", None)
        if key not in self._forms:
            try:
                self._forms[key] = expert_forms.form(experts, lay)
            except ValueError as error:
                raise ValueError(f"{block.name}: {type(experts).__name__} cannot be given to "
                                 f"libmoert by its structure: {error}") from error
        return self._forms[key]

    def layouts(self):
        """Each block's Layout, or None."""
        return [_or_none(lambda b=block: self.layout(b)) for block in self.found]

    def compare_weights(self):
        """Compares a model in memory with the folder."""
        stacks = [lay and _or_none(lambda b=block, l=lay: {
            name: self.parameters.stack(f"{b.name}.experts.{name}", shape)
            for name, shape in expert_forms.stacks_wanted(l).items()})
            for block, lay in zip(self.found, self.layouts())]
        agreement.weights(self.model, self.found, self.parameters, stacks)

    def refuse_rounding(self):
        for block, lay in zip(self.found, self.layouts()):
            parts = lay and _or_none(lambda b=block, l=lay: checkpoint_experts.matrices(
                self.parameters, b.name + ".experts", l))
            agreement.refuse_rounding((f"{block.name}.experts: {part}", stack)
                                      for part, stack in (parts or {}).items()
                                      if part.endswith("proj"))


def _or_none(call):
    try:
        return call()
    except ValueError:
        return None


def make(model, experts, options, device, numerics, files=None):
    """A Plan. files: those that transformers loads now; None: the model is in memory."""
    found = blocks.find(model)
    if not found and not isinstance(experts, Source) and (own := own_products.sorted_ones(model)):
        _check_own((one.module for one in own), options, device)
        return _by_own(_Checkpoint(model, [], experts, files), own)
    if not found:
        raise ValueError(f"{type(model).__name__} has no MoE block: no module with experts and a "
                         "gate or router. Of a dense model libmoert would hold nothing: "
                         "transformers.AutoModelForCausalLM.from_pretrained loads it")
    routing, ranks = _router(options, device)
    if isinstance(experts, Source):
        return _of_source(model, found, experts, routing, ranks, options)
    checkpoint = _Checkpoint(model, found, experts, files)
    if files is None:
        checkpoint.compare_weights()
    if numerics == "f32" and not checkpoint.quantization:
        checkpoint.refuse_rounding()
    # The library alone makes quantized experts, and keeps them as they are.
    quantized = options.get("experts") or checkpoint.quantization
    why = []
    for router in ("library", "host"):
        if routing not in (None, router) or (router == "host" and not quantized):
            continue
        try:
            return _by_library(checkpoint, router, ranks, options)
        except (ValueError, Error, ToolError) as error:
            why.append((router, error))
    if options.get("experts") or routing == "library":
        raise _refusal(checkpoint, why, options.get("experts"))
    try:
        plan = _by_structure(checkpoint, ranks, options)
    except ValueError as error:
        why.append(("structure", error))
        try:
            _check_own((b.module.experts for b in found), options, device)
            own = [own_products.of_block(f"{b.name}.experts", b.module.experts,
                                         options.get("top_k") or blocks.top_k(b)) for b in found]
            plan = _by_own(checkpoint, own)
        except ValueError as own_error:
            raise _refusal(checkpoint, [*why, ("structure", own_error)], None) from error
    if checkpoint.quantization:
        _log.warning("quantized experts become bf16 in memory, as the library does not read this "
                     "model: %s", _text(why[0][1]))
    for _, error in why:
        _log.info("the model routes, its experts are read by its structure: %s", _text(error))
    return plan


def _check_own(modules, options, device):
    """Whether the model's own code may multiply."""
    names = ", ".join(sorted({type(module).__name__ for module in modules}))
    for what, stands_in_the_way in (
            ("the CPU alone", device.type != "cpu"), ("one rank", options.get("group") is not None),
            ("the model's own router", options["routing"] == "library"),
            ("experts as they are stored", options.get("experts"))):
        if stands_in_the_way:
            raise ValueError(f"{names}: the products are the model's own code, with {what}")


def _by_own(checkpoint, own):
    """The engine holds the experts, the model's own code multiplies."""
    names = ", ".join(sorted({type(one.module).__name__ for one in own}))
    source, parts = own_products.source(checkpoint.parameters, own, str(checkpoint.folder))
    _log.info("the model's own code multiplies, libmoert holds the matrices: %s", names)
    return Plan(checkpoint.found, source, "own", None, own=own, parts=parts)


def _text(error):
    return getattr(error, "message", str(error))


def _refusal(checkpoint, why, scheme):
    """An error of why nothing reads these experts, and the nearest way that does. why: (who was to
    read or route, its error), one a way that was tried."""
    unknown = all("model_type is" in str(error) for _, error in why)
    if len(why) == 1 and not unknown and why[0][0] != "structure":
        return why[0][1]
    said = dict.fromkeys(_text(error).split("; supported are")[0] for _, error in reversed(why))
    if scheme:
        way = ("the library alone quantizes experts. The nearest way: the checkpoint as it is, "
               "without a scheme (experts=)")
    elif why[-1][0] != "structure":
        way = ("the nearest way: routing='host', with the model's own router, or routing=None, "
               "which chooses")
    else:
        way = ("the nearest ways: products of your own over experts that libmoert holds "
               "(moert.Source.from_records and Step.fetch, docs/guide/python.md), or a GGUF file in "
               "llama.cpp through libmoert's plug-in (docs/guide/llama-cpp.md)")
    return ValueError(f"{'; '.join(said)}; {way}")


def _router(options, device):
    routing, group = options["routing"], options.get("group")
    if routing not in (None, "library", "host"):
        raise ValueError(f"routing is {routing!r}, legal are 'library', 'host' and None")
    ranks = None if group is None else Ranks(group, options.get("parallel") or "expert")
    if ranks and ranks.some_experts and device.type == "cuda":
        if routing == "library":
            raise ValueError("on CUDA an engine over some experts does not route: take "
                             "routing='host', or parallel='tensor'")
        routing = "host"
    return routing, ranks


def _of_source(model, found, source, routing, ranks, options):
    """Experts that are in a pack, or the host's own."""
    layouts = [_or_none(lambda b=block: expert_forms.layout(b.module.experts)) for block in found]
    agreement.layers(found, source, layouts, options.get("top_k"))
    if routing is None and not _routes(source):
        routing = "host"
    return _over(source, model, found, layouts, routing or "library", ranks)


def _routes(source):
    """Whether the library routes every layer of a source."""
    return not any(source.spec(layer).routing == _c.ROUTINGS["external"]
                   for layer in range(source.layers))


def _over(source, model, found, layouts, routing, ranks):
    """A Plan over a source that the library reads."""
    if routing == "library":
        if not _routes(source):
            raise ValueError("the library has no router like this model's: routing='host' keeps it")
        agreement.whole(found, source)
        return Plan(found, source, routing, ranks, _values(model, found), [None] * len(found))
    for block in found:
        try:
            expert_forms.takes_routing(block.module.experts)
        except ValueError as error:
            raise ValueError(f"{block.name}: its experts cannot be replaced alone: {error}; "
                             "routing='library' replaces the whole block") from error
    identities = [lay.count if lay and expert_forms.passes_on(block.module.experts, lay) else None
                  for block, lay in zip(found, layouts)]
    return Plan(found, source, routing, ranks, [1] * len(found), identities)


def _values(model, found):
    """What each block returns, where the library may stand in its place."""
    if getattr(model.config.get_text_config(), "output_router_logits", False):
        raise ValueError("output_router_logits is set, and the library's routers give no logits")
    values = []
    for block in found:
        try:
            values.append(blocks.returns(block.module))
        except ValueError as error:
            raise ValueError(f"{block.name}: {type(block.module).__name__} cannot be replaced as a "
                             f"whole: {error}; routing='host' keeps it") from error
    return values


def _by_library(checkpoint, routing, ranks, options):
    """The library reads the checkpoint, and routes unless the host is to."""
    model, found = checkpoint.model, checkpoint.found
    if routing == "library":
        _values(model, found)  # before anything is quantized
        changed = agreement.changed_fields(model.config.get_text_config(), checkpoint.folder)
        if changed:
            raise ValueError(f"the library routes as config.json says, and {'; '.join(changed)}: "
                             "routing='host' keeps the model's own router")
    if set(checkpoint.files) != set(tensor_files.of_folder(checkpoint.folder)):
        raise ValueError(f"transformers reads {checkpoint.files[0].name} and others, the library "
                         "model.safetensors or the files of its index")
    if options.get("experts"):
        source = pack_cache.quantized(checkpoint.folder, options["experts"], options["cache_dir"],
                                      options["progress"])
    else:
        source = Source.open(checkpoint.folder, options["cache_dir"])
    layouts = checkpoint.layouts()
    agreement.layers(found, source, layouts, options.get("top_k"))
    return _over(source, model, found, layouts, routing, ranks)


def _by_structure(checkpoint, ranks, options):
    """A source of routed experts alone, from the tensors that are the model's parameters."""
    found, layers = checkpoint.found, []
    numbers = [block.layer for block in found]
    if None in numbers or sorted(set(numbers)) != numbers:
        numbers = range(len(found))
    for block, number in zip(found, numbers):
        lay = checkpoint.layout(block)
        layers.append(Layer(block.name + ".experts", lay, checkpoint.form(block, lay), number,
                            options.get("top_k") or blocks.top_k(block)))
    source = CheckpointExperts(checkpoint.parameters, layers).source(str(checkpoint.folder))
    if left := checkpoint.parameters.left_out:
        _log.info("experts of modules that the model does not have are left out: %s",
                  ", ".join(left))
    identities = [layer.layout.count if layer.form.identity else None for layer in layers]
    return Plan(found, source, "host", ranks, [1] * len(found), identities)
