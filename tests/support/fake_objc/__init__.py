"""A replacement for PyObjC and Metal on machines without them, for tests of the native driver.

It counts retains and releases, autorelease pools and mapped pages, and rejects methods, arguments and types that
PyObjC would reject. What PyObjC knows of a method is read from ``pyobjc_selectors.json``, which was recorded from its
releases. Kernels run in the emulator if ``executes`` is set.
"""

from support.fake_objc.install import FakeMac, install

__all__ = ["FakeMac", "install"]
