"""Metal: contexts, buffers, storage, the profiler and the emulator, in one place.

``MetalContext`` opens a device, or the emulator with ``MetalContext.open("emulated")``; ``using_metal`` makes it the
one that computes; ``ProfiledContext`` measures kernels; ``transfers`` counts the bytes that were copied.

>>> import lbrx.metal
>>> lbrx.metal.MetalContext.__name__
'MetalContext'
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from lbrx.base.lazy_names import lazy_names as _lazy_names

if _TYPE_CHECKING:
    from lbrx.devices.metal.context import MetalContext as MetalContext
    from lbrx.devices.metal.context.current import metal_context as metal_context
    from lbrx.devices.metal.context.current import using_metal as using_metal
    from lbrx.devices.metal.context.profiler import ProfiledContext as ProfiledContext
    from lbrx.devices.metal.context.storage import MetalStorage as MetalStorage
    from lbrx.devices.metal.context.transfers import Transfers as Transfers
    from lbrx.devices.metal.context.transfers import transfers as transfers
    from lbrx.devices.metal.driver.errors import MetalError as MetalError
    from lbrx.devices.metal.driver.errors import ShaderError as ShaderError
    from lbrx.devices.metal.driver.pool import BufferPool as BufferPool
    from lbrx.devices.metal.emulator.driver import EmulatedDriver as EmulatedDriver

__getattr__, __dir__, __all__ = _lazy_names(__name__, __file__)
