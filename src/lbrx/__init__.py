"""lbrx: merge, quantize, convert, check and compute with language-model weights larger than memory.

Names are imported on first use, so opening and describing files needs no compiler and a command imports only what it
uses. Numba is imported when the first value is computed.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from lbrx.base.lazy_names import lazy_names as _lazy_names

if _TYPE_CHECKING:
    from lbrx import memory as memory
    from lbrx import metal as metal
    from lbrx import ops as ops
    from lbrx.cluster.options import ClusterError as ClusterError
    from lbrx.devices.explain import explain as explain
    from lbrx.devices.metal.driver.errors import MetalError as MetalError
    from lbrx.errors import DTypeError as DTypeError
    from lbrx.errors import FileError as FileError
    from lbrx.errors import FormatError as FormatError
    from lbrx.errors import KernelError as KernelError
    from lbrx.errors import LbrxError as LbrxError
    from lbrx.errors import MemoryBudgetError as MemoryBudgetError
    from lbrx.errors import ShapeError as ShapeError
    from lbrx.errors import TensorNotFound as TensorNotFound
    from lbrx.errors import TruncatedError as TruncatedError
    from lbrx.errors import UsageError as UsageError
    from lbrx.files.checkpoint.opening import Checkpoint as Checkpoint
    from lbrx.files.checkpoint.opening import open as open
    from lbrx.files.checkpoint.summary import inspect as inspect
    from lbrx.files.output.nonfinite import NonFiniteError as NonFiniteError
    from lbrx.files.output.options import Progress as Progress
    from lbrx.files.output.run import RunResult as RunResult
    from lbrx.files.output.save import save as save
    from lbrx.jobs.bench.bench import bench as bench
    from lbrx.jobs.compare.functions import compare as compare
    from lbrx.jobs.compare.functions import diff as diff
    from lbrx.jobs.convert.convert import convert as convert
    from lbrx.jobs.doctor.doctor import doctor as doctor
    from lbrx.jobs.insert.insert import insert as insert
    from lbrx.jobs.lora.combine import combine_loras as combine_loras
    from lbrx.jobs.lora.convert import convert_lora as convert_lora
    from lbrx.jobs.lora.extract import extract_lora as extract_lora
    from lbrx.jobs.merge.in_memory import merge_tensors as merge_tensors
    from lbrx.jobs.merge.lora import merge_lora as merge_lora
    from lbrx.jobs.merge.merge import merge as merge
    from lbrx.jobs.merge.methods.method import MergeContext as MergeContext
    from lbrx.jobs.merge.recipe.yaml_lines import RecipeError as RecipeError
    from lbrx.jobs.merge.shuffle import shuffle as shuffle
    from lbrx.jobs.moe.moe import moe as moe
    from lbrx.jobs.quantize.quantize import quantize as quantize
    from lbrx.jobs.score import lm_eval as lm_eval
    from lbrx.jobs.score.choices import score_choices as score_choices
    from lbrx.jobs.score.records import compare_scores as compare_scores
    from lbrx.jobs.score.score import score as score
    from lbrx.jobs.search.search import search as search
    from lbrx.jobs.transplant.transplant import transplant as transplant
    from lbrx.jobs.upload.upload import upload as upload
    from lbrx.jobs.verify.verify import verify as verify
    from lbrx.models.inference import open_model as open_model
    from lbrx.models.inference.chat import Chat as Chat
    from lbrx.models.inference.generating import generate as generate
    from lbrx.ops.shards import gather as gather
    from lbrx.settings import Device as Device
    from lbrx.settings import using as using
    from lbrx.tensors.coded import QuantizationInfo as QuantizationInfo
    from lbrx.tensors.creation import arange as arange
    from lbrx.tensors.creation import concatenate as concatenate
    from lbrx.tensors.creation import evaluate as evaluate
    from lbrx.tensors.creation import full as full
    from lbrx.tensors.creation import normal as normal
    from lbrx.tensors.creation import ones as ones
    from lbrx.tensors.creation import ones_like as ones_like
    from lbrx.tensors.creation import stack as stack
    from lbrx.tensors.creation import uniform as uniform
    from lbrx.tensors.creation import where as where
    from lbrx.tensors.creation import zeros as zeros
    from lbrx.tensors.creation import zeros_like as zeros_like
    from lbrx.tensors.dtype import DType as DType
    from lbrx.tensors.dtype import dtype as dtype
    from lbrx.tensors.mapped import mmap_tensor as mmap_tensor
    from lbrx.tensors.open_file import MmapOptions as MmapOptions
    from lbrx.tensors.shape import Layout as Layout
    from lbrx.tensors.shape import Shape as Shape
    from lbrx.tensors.storage import CpuStorage as CpuStorage
    from lbrx.tensors.storage import MmapStorage as MmapStorage
    from lbrx.tensors.storage import Storage as Storage
    from lbrx.tensors.tensor import Tensor as Tensor
    from lbrx.tensors.tensor import TensorMetadata as TensorMetadata
    from lbrx.tensors.tensor import TensorView as TensorView
    from lbrx.tensors.tensor import tensor as tensor
    from lbrx.version import __version__ as __version__

__getattr__, __dir__, __all__ = _lazy_names(__name__, __file__)
