"""Named data sets to tensors: find, fetch, verify, decode, batch, augment.

train = atmc.data.load("cifar10", "train")            # ImageData: uint8 images, labels, classes, mean, std, digest
train, validation = atmc.data.hold_out(train, 5_000)  # a fixed rule, the same for every run
batches = atmc.data.DeviceBatches(train, 128, "cuda", torch.bfloat16, augment="crop-flip", seed=0)
for step in range(batches.steps_for(epochs=10)):
    x, y = batches.batch(step)                        # a position is the global step and nothing else
"""

from atmc.data.catalogue import available, fetch, is_streaming, load, open_source
from atmc.data.choose_batches import eval_batches, train_batches
from atmc.data.dataset import DatasetInfo, ImageData, default_root
from atmc.data.device_batches import DeviceBatches
from atmc.data.device_store import DeviceStore
from atmc.data.epoch_order import EpochPlan, plan
from atmc.data.evaluation_batches import EvalBatches
from atmc.data.image_decoding import read_image
from atmc.data.importance_batches import ImportanceBatches
from atmc.data.own_data import OwnData, in_order, is_own, read_own, split_batch
from atmc.data.stream_batches import StreamBatches, StreamEvalBatches
from atmc.data.streamed_source import ArraySource, Source
from atmc.data.training_batches import Batches
from atmc.data.validation_split import hold_out

__all__ = [
    "ArraySource",
    "Batches",
    "DatasetInfo",
    "DeviceBatches",
    "DeviceStore",
    "EpochPlan",
    "EvalBatches",
    "ImageData",
    "ImportanceBatches",
    "OwnData",
    "Source",
    "StreamBatches",
    "StreamEvalBatches",
    "available",
    "default_root",
    "eval_batches",
    "fetch",
    "hold_out",
    "in_order",
    "is_own",
    "is_streaming",
    "load",
    "open_source",
    "plan",
    "read_image",
    "read_own",
    "split_batch",
    "train_batches",
]
