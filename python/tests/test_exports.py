"""Files that go with a model when it is exported, and those that come with a run."""

import json
import os
import sys
import tempfile
import threading
import types
import unittest
from unittest import mock

import numpy as np
from mock_node import played

from starling_flock import Client, FlockError, files
from starling_flock.exports import files_of, leave


class Config:
    """A configuration as Hugging Face's libraries have it."""

    def __init__(self, **values):
        self.__dict__.update(values)

    def to_json_string(self):
        return json.dumps(self.__dict__)

    def save_pretrained(self, folder, auto_mapping_dict):
        with open(os.path.join(folder, "adapter_config.json"), "w") as file:
            json.dump({**self.__dict__, "auto_mapping": auto_mapping_dict}, file)


class Tensor:
    def __init__(self, place, shape):
        self.place, self.shape = place, shape

    def data_ptr(self):
        return self.place


def held(name, tensor):
    return types.SimpleNamespace(name=name, get=lambda: tensor)


class Left(unittest.TestCase):
    def test_files_are_with_the_node_once_it_has_welcomed(self):
        def script(node):
            # Of an earlier script, whose model was another one; and one that somebody else has left.
            for name in ("adapter_config.json", "notes.txt"):
                with open(os.path.join(node.export, name), "w") as file:
                    file.write("old")
            session = node.welcome()
            session.load(node.founded)
            session.lease(np.arange(4))
            session.step(0)
            session.end()

        export = {"config.json": '{"a": 1}', "tokenizer.json": b"\x00\xff"}
        with tempfile.TemporaryDirectory() as home, played(script, home=home) as node:
            client = Client({"w": np.zeros(3, np.float32)}, samples=10, node=home, export=export)
            while client.flying:
                client.draw(client.unit)
                client.step(1.0)
            self.assertEqual(sorted(os.listdir(node.export)), ["config.json", "notes.txt", "tokenizer.json"])
            with open(os.path.join(node.export, "tokenizer.json"), "rb") as file:
                self.assertEqual(file.read(), b"\x00\xff")

    def test_a_folder_that_cannot_be_written_stops_no_training(self):
        def script(node):
            os.rmdir(node.export)
            session = node.welcome()
            session.load(node.founded)
            session.lease(np.arange(4))
            session.step(0)
            session.end()

        with played(script) as node:
            client = Client({"w": np.zeros(3, np.float32)}, samples=10, node=node.home, export={"a": "b"})
            with self.assertLogs("starling_flock", "WARNING") as logs:
                while client.flying:
                    client.draw(client.unit)
                    client.step(1.0)
        self.assertIn("what goes with an exported model is not in", logs.output[0])


class Come(unittest.TestCase):
    def test_the_folder_of_a_runs_files_is_waited_for(self):
        with tempfile.TemporaryDirectory() as home:
            os.mkdir(os.path.join(home, "trainer"))
            there = os.path.join(home, "there")
            os.mkdir(there)
            with mock.patch("starling_flock.connection.FILES_LOOK", 0.01), self.assertLogs("starling_flock") as logs:
                found = []
                thread = threading.Thread(target=lambda: found.append(files(home)), daemon=True)
                thread.start()
                while not logs.output:
                    thread.join(0.01)
                os.symlink(there, os.path.join(home, "trainer", "files"))
                thread.join(60)
            self.assertEqual(found, [os.path.join(home, "trainer", "files")])
            self.assertIn("not in", logs.output[0])
            with mock.patch.dict(os.environ, STARLING_FILES=there):
                self.assertEqual(files(), there)

    def test_a_run_without_files_has_no_folder(self):
        with mock.patch.dict(os.environ):
            os.environ.pop("STARLING_FILES", None)
            with self.assertRaisesRegex(FlockError, "the run has no files"):
                files()


class Models(unittest.TestCase):
    def test_a_model_without_a_configuration_has_no_files(self):
        self.assertEqual(files_of(object(), []), {})
        self.assertEqual(files_of(types.SimpleNamespace(config={"a": 1}), []), {})

    def test_a_model_of_hugging_face_has_its_configuration(self):
        class Llama:
            config = Config(model_type="llama", architectures=None)

        files = files_of(Llama(), [])
        self.assertEqual(json.loads(files["config.json"]), {"model_type": "llama", "architectures": ["Llama"]})
        self.assertIsNone(Llama.config.architectures)

    def test_an_adapter_is_named_as_peft_names_it(self):
        a, b, other = Tensor(1, (2, 3)), Tensor(2, (3, 2)), Tensor(3, (1,))
        config = Config(r=2, base_model_name_or_path=None, inference_mode=False, task_type="CAUSAL_LM")
        model = types.SimpleNamespace(
            peft_config={"mine": config},
            active_adapter="mine",
            get_base_model=lambda: types.SimpleNamespace(name_or_path="org/base"),
            config=Config(model_type="llama"),
        )

        def state_dict(model, adapter_name, save_embedding_layers):
            self.assertEqual((adapter_name, save_embedding_layers), ("mine", False))
            return {"q.lora_A.weight": Tensor(1, (2, 3)), "q.lora_B.weight": Tensor(2, (3, 2)), "same": other}

        travel = [held("q.lora_A.mine.weight", a), held("q.lora_B.mine.weight", b), held("same", other)]
        travel.append(held("more", Tensor(9, (1,))))
        peft = types.SimpleNamespace(get_peft_model_state_dict=state_dict)
        with mock.patch.dict(sys.modules, peft=peft):
            files = files_of(model, travel)
        self.assertEqual(sorted(files), ["adapter_config.json", "export.json"])
        told = json.loads(files["adapter_config.json"])
        changed = {"base_model_name_or_path": "org/base", "inference_mode": True, "auto_mapping": None}
        self.assertEqual(told, {"r": 2, "task_type": "CAUSAL_LM", **changed})
        self.assertFalse(config.inference_mode, "the model's own is as it was")
        self.assertEqual(
            json.loads(files["export.json"]),
            {
                "file": "adapter_model.safetensors",
                "names": {
                    "q.lora_A.mine.weight": "q.lora_A.weight",
                    "q.lora_B.mine.weight": "q.lora_B.weight",
                },
            },
        )

    def test_each_file_is_there_as_a_whole(self):
        with tempfile.TemporaryDirectory() as folder:
            leave(folder, {"a.txt": "one"})
            leave(folder, {"a.txt": "two", "export.json": "{}"})
            self.assertEqual(sorted(os.listdir(folder)), ["a.txt", "export.json"])
            leave(folder, {})
            self.assertEqual(os.listdir(folder), ["a.txt"])


if __name__ == "__main__":
    unittest.main()
