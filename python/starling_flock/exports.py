"""The small files that go with a model when the node's user exports it (docs/bridge.md section 3.5)."""

import copy
import json
import logging
import os
import tempfile

log = logging.getLogger("starling_flock")

WISHES = "export.json"
# Files that this package writes by itself. Those of an earlier script must not go with another model.
OWN = (WISHES, "config.json", "adapter_config.json")
ADAPTER = "adapter_model.safetensors"


def leave(folder, files):
    """Writes files into the node's folder, each as a whole, and takes those of an earlier script away."""
    for name in OWN:
        if name not in files and os.path.exists(os.path.join(folder, name)):
            os.remove(os.path.join(folder, name))
    for name, content in files.items():
        unfinished = os.path.join(folder, f".{name}.new")
        with open(unfinished, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        os.replace(unfinished, os.path.join(folder, name))


def files_of(model, travel):
    """The files of a model of Hugging Face's or of PEFT's; none of others. `travel` has the tensors of the run."""
    if hasattr(model, "peft_config") and hasattr(model, "get_base_model"):
        return adapter_files(model, travel)
    config = getattr(model, "config", None)
    if not hasattr(config, "to_json_string"):
        return {}
    config = copy.deepcopy(config)
    if not getattr(config, "architectures", None):
        config.architectures = [type(model).__name__]
    return {"config.json": config.to_json_string()}


def adapter_files(model, travel):
    """An adapter as PEFT's `save_pretrained` names it."""
    from peft import get_peft_model_state_dict

    adapter, base = model.active_adapter, model.get_base_model()
    config = copy.deepcopy(model.peft_config[adapter])
    if config.base_model_name_or_path is None:
        config.base_model_name_or_path = getattr(base, "name_or_path", None)
    # A model whose task nobody has named is found by its class.
    mapping = {"base_model_class": type(base).__name__, "parent_library": type(base).__module__}
    # As PEFT has it in a folder: who loads it says whether it is trained on.
    config.inference_mode = True
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder, auto_mapping_dict=mapping if config.task_type is None else None)
        with open(os.path.join(folder, "adapter_config.json")) as file:
            text = file.read()
    saved = get_peft_model_state_dict(model, adapter_name=adapter, save_embedding_layers=False)
    names = {place_of(tensor): name for name, tensor in saved.items()}
    pairs = ((held.name, names.get(place_of(held.get()))) for held in travel)
    names = {name: theirs for name, theirs in pairs if theirs not in (None, name)}
    return {"adapter_config.json": text, WISHES: json.dumps({"file": ADAPTER, "names": names})}


def place_of(tensor):
    """What two tensors of the same memory have in common."""
    tensor = getattr(tensor, "_local_tensor", tensor)
    return tensor.data_ptr(), tuple(tensor.shape)
