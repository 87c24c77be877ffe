"""What Apple's compiler rejects is rejected here too, for the right reason and with the shader's line."""

from __future__ import annotations

import pytest

from lbrx.devices.metal.driver import CompileOptions
from lbrx.devices.metal.driver.errors import ShaderError
from support.invalid_shaders import INVALID, WITHOUT_PREFIX, body
from support.metal_shaders import PREFIX, driver, needs_clang

pytestmark = needs_clang


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_shader_is_rejected(name: str) -> None:
    text, reason = INVALID[name]
    with pytest.raises(ShaderError) as caught:
        driver().compile(PREFIX + text, CompileOptions())
    assert reason in str(caught.value)
    assert "shader.metal:" in str(caught.value)


@pytest.mark.parametrize("name", WITHOUT_PREFIX)
def test_an_invalid_shader_without_the_library_is_rejected(name: str) -> None:
    text, reason = WITHOUT_PREFIX[name]
    with pytest.raises(ShaderError, match=reason):
        driver().compile(text, CompileOptions())


def test_an_error_names_the_line_of_the_shader() -> None:
    with pytest.raises(ShaderError, match=r"shader\.metal:5:"):
        driver().compile(PREFIX + "\n\n" + body("x[i] = undeclared;"), CompileOptions())
