"""Shaders that Apple's compiler rejects: a name, the text, and a part of the reason.

Names say what is wrong. All but those of ``WITHOUT_PREFIX`` follow an include of <metal_stdlib>.
"""

KERNEL = "kernel void k(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {{ {} }}"


def body(text: str) -> str:
    return KERNEL.format(text)


STAGE_NAMES: dict[str, tuple[str, str]] = {
    f"{word} as the name of a {what}": (text.replace("WORD", word), f"'{word}' is a keyword")
    for word in ("vertex", "fragment")
    for what, text in (
        ("parameter", "float f(float WORD) { return WORD; }\n" + body("x[i] = f(1);")),
        ("local variable", body("int WORD = 1; x[i] = WORD;")),
        ("member", "struct A { int WORD; };\n" + body("A a; a.WORD = 1; x[i] = a.WORD;")),
    )
}
INVALID: dict[str, tuple[str, str]] = {
    "double variable": (body("double d = x[i]; x[i] = d;"), "'double' is not supported"),
    "double parameter": ("double f(double v) { return v; }\n" + body("x[i] = f(x[i]);"), "'double' is not supported"),
    "goto": (body("again: x[i] += 1; if (x[i] < 3) goto again;"), "goto statement is not supported"),
    "inline assembly": (body('asm("nop");'), "inline assembly is not supported"),
    "virtual function": ("struct A { virtual int f() { return 1; } };\n" + body("x[i] = 1;"), "virtual functions"),
    "new": (body("thread float* p = new float; x[i] = *p;"), "operator new is not supported"),
    "delete": ("void f(thread float* p) { delete p; }\n" + body("x[i] = 1;"), "operator delete is not supported"),
    "throw": (body("if (x[i] < 0) throw 1;"), "exceptions are not supported"),
    "try": (body("try { x[i] = 1; } catch (...) {}"), "exceptions are not supported"),
    "std namespace": (body("x[i] = std::max(x[i], 1.0f);"), "there is no namespace 'std'"),
    "thread_local": ("thread_local int n;\n" + body("x[i] = 1;"), "thread_local"),
    "dynamic_cast": (
        "struct A {}; struct B : A {};\n" + body("B b; thread A* a = dynamic_cast<thread A*>(&b); x[i] = a ? 1 : 0;"),
        "dynamic_cast is not supported",
    ),
    "typeid": (body("x[i] = typeid(float) == typeid(int);"), "typeid is not supported"),
    "recursion through auto variable": (body("undeclared(i);"), "undeclared identifier 'undeclared'"),
    "global variable": ("float total = 0;\n" + body("total += x[i];"), "must reside in constant address space"),
    "global array": ("int table[4];\n" + body("x[i] = table[0];"), "must reside in constant address space"),
    "static member": ("struct A { static int n; };\n" + body("x[i] = 1;"), "static data member 'n'"),
    "static local": (body("static int n = 0; x[i] = n++;"), "static local variables are not supported"),
    "write to constant": (
        "kernel void k(constant float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] = 1; }",
        "const",
    ),
    "write to const device": (
        "kernel void k(device const float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] = 1; }",
        "const",
    ),
    "kernel argument without address space": (
        "kernel void k(float* x [[buffer(0)]]) { x[0] = 1; }",
        "must be in the device, constant or threadgroup address space",
    ),
    "kernel argument in thread space": (
        "kernel void k(thread float* x [[buffer(0)]]) { x[0] = 1; }",
        "must be in the device, constant or threadgroup address space",
    ),
    "kernel argument without attribute": (
        "kernel void k(device float* x [[buffer(0)]], uint i) { x[i] = 1; }",
        "invalid or missing attribute",
    ),
    "unknown attribute": (
        "kernel void k(device float* x [[buffer(0)]], uint i [[thread_index_in_grid]]) { x[i] = 1; }",
        "invalid or missing attribute",
    ),
    "position of a wrong type": (
        "kernel void k(device float* x [[buffer(0)]], float i [[thread_position_in_grid]]) { x[0] = i; }",
        "invalid type for this attribute",
    ),
    "signed position": (
        "kernel void k(device float* x [[buffer(0)]], int i [[thread_position_in_grid]]) { x[i] = 1; }",
        "invalid type for this attribute",
    ),
    "vector for a scalar position": (
        "kernel void k(device float* x [[buffer(0)]], uint3 i [[thread_index_in_simdgroup]]) { x[i.x] = 1; }",
        "must be a scalar ushort or uint",
    ),
    "kernel that returns a value": (
        "kernel float k(device float* x) { return x[0]; }",
        "must return void",
    ),
    "buffer index used twice": (
        "kernel void k(device float* x [[buffer(0)]], device float* y [[buffer(0)]]) { x[0] = y[0]; }",
        "used twice",
    ),
    "buffer index out of range": ("kernel void k(device float* x [[buffer(31)]]) { x[0] = 1; }", "not in 0..30"),
    "call of a kernel": (
        "kernel void f(device float* x [[buffer(0)]]) { x[0] = 1; }\n"
        "kernel void k(device float* x [[buffer(0)]]) { f(x); }",
        "cannot be called",
    ),
    "device pointer to threadgroup": (
        body("threadgroup float* p = x; p[0] = 1;"),
        "of type 'device float *'",
    ),
    "device pointer to thread": (
        body("thread float* p = x; p[0] = 1;"),
        "of type 'device float *'",
    ),
    "threadgroup pointer to device": (
        "kernel void k(device float* x, threadgroup float* s [[threadgroup(0)]]) { device float* p = s; *p = *x; }",
        "'device float *' with an lvalue of type 'threadgroup float *'",
    ),
    "threadgroup pointer as device argument": (
        "void f(device float* p) { *p = 1; }\n"
        "kernel void k(device float* x, threadgroup float* s [[threadgroup(0)]]) { f(s); *x = 1; }",
        "no matching function",
    ),
    "thread pointer as device argument": (
        "void f(device float* p) { *p = 1; }\n" + body("float v = 0; f(&v); x[i] = v;"),
        "no matching function",
    ),
    "device pointer to constant": (
        "float f(constant float* p) { return *p; }\n" + body("x[i] = f(x);"),
        "constant address space",
    ),
    "pointer without address space": (body("float* p = x; p[i] = 1;"), "explicit address space qualifier"),
    "reference without address space": (body("float& p = x[i]; p = 1;"), "explicit address space qualifier"),
    "parameter without address space": (
        "void f(float* p) { *p = 1; }\n" + body("float v; f(&v); x[i] = v;"),
        "explicit address space qualifier",
    ),
    "cast without address space": (body("((float*)x)[i] = 1;"), "explicit address space qualifier"),
    "member pointer without address space": (
        "struct A { float* p; };\n" + body("A a; x[i] = sizeof(a);"),
        "explicit address space qualifier",
    ),
    "threadgroup variable in a function": (
        "float f() { threadgroup float s[32]; return s[0]; }\n" + body("x[i] = f();"),
        "can only be declared in a kernel function",
    ),
    "function pointer variable": (
        "float f(float v) { return v; }\n" + body("float (*p)(float) = f; x[i] = p(x[i]);"),
        "function pointer",
    ),
    "ambiguous max": (body("x[i] = max(x[i], 1);"), "ambiguous"),
    "ambiguous min of signs": (body("int a = 1; uint b = 2; x[i] = min(a, b);"), "ambiguous"),
    "implicit float to bfloat": (
        body("bfloat b = x[i]; x[i] = float(b);"),
        "implicitly converted to 'bfloat'",
    ),
    "implicit vector conversion": (body("float4 v = int4(1); x[i] = v.x;"), "no viable conversion"),
    "vector of too few components": (body("float4 v = float4(1, 2, 3); x[i] = v.x;"), "no matching constructor"),
    "swizzle of a missing component": (body("float2 v = float2(1); x[i] = v.xz.y;"), "does not have"),
    "assignment to a repeated swizzle": (
        body("float2 v = 0; v.xx = float2(1, 2); x[i] = v.x;"),
        "component twice",
    ),
    "as_type of another size": (body("x[i] = as_type<float>(half(1));"), "same size"),
    "atomic order": (
        "kernel void k(device atomic_uint* x [[buffer(0)]]) { atomic_fetch_add_explicit(x, 1, memory_order_seq_cst); }",
        "only memory_order_relaxed",
    ),
    "plain read of an atomic": (
        "kernel void k(device atomic_uint* x) { uint v = *x; (void)v; }",
        "no viable",
    ),
    "simdgroup matrix of int": (body("simdgroup_matrix<int, 8, 8> m; x[i] = 1;"), "must be float, half or bfloat"),
    "simdgroup matrix of another size": (body("simdgroup_matrix<float, 4, 4> m; x[i] = 1;"), "only 8x8"),
    "simd_sum of bool": (body("x[i] = simd_sum(true);"), "no matching function"),
    "function constant with a value": (
        "constant int n [[function_constant(0)]] = 3;\n" + body("x[i] = n;"),
        "cannot have an initializer",
    ),
    "function constant outside constant": (
        "const int n [[function_constant(0)]];\n" + body("x[i] = n;"),
        "must be declared in the constant address space",
    ),
    "instantiation of an unknown template": (
        'template [[host_name("k")]] kernel void f<float>(device float*);',
        "unknown kernel template",
    ),
    "syntax error": (body("x[i] = ;"), "expected expression"),
    "unbalanced brace": ("kernel void k(device float* x [[buffer(0)]]) { x[0] = 1;", "never closed"),
    "wrong preprocessor condition": ("#if 1\n" + body("x[i] = 1;"), "unterminated conditional"),
    "missing include": ('#include "nowhere.h"\n' + body("x[i] = 1;"), "file not found"),
    "method of another address space": (
        "struct A { float v; float get() const thread { return v; } };\n"
        "kernel void k(device A* a [[buffer(0)]], device float* x [[buffer(1)]]) { x[0] = a->get(); }",
        "cannot initialize object parameter of type 'const thread A'",
    ),
    "variable length array": (body("float a[i]; x[i] = a[0];"), "not a constant expression"),
    **STAGE_NAMES,
    "positions of different widths": (
        "kernel void k(device float* x [[buffer(0)]], uint2 i [[thread_position_in_grid]], "
        "uint3 n [[threads_per_grid]]) { x[i.x] = n.x; }",
        "different numbers of components",
    ),
    "two function constants with one index": (
        "constant int a [[function_constant(3)]];\nconstant int b [[function_constant(3)]];\n" + body("x[i] = a + b;"),
        "function constants 'a' and 'b' have the same index 3",
    ),
    "threadgroup variable with a value": (
        body("threadgroup float s[2] = {1, 2}; x[i] = s[0];"),
        "threadgroup address space cannot have an initializer",
    ),
    "simd_shuffle of long": (body("long v = i; x[i] = simd_shuffle(v, 0);"), "no matching function"),
    "simd_sum of ulong": (body("ulong v = i; x[i] = simd_sum(v);"), "no matching function"),
    "addition to an atomic ulong": (
        "kernel void k(device atomic_ulong* x) { atomic_fetch_add_explicit(x, 1ul, memory_order_relaxed); }",
        "no matching function",
    ),
    "maximum of an atomic float": (
        "kernel void k(device atomic_float* x) { atomic_fetch_max_explicit(x, 1.0f, memory_order_relaxed); }",
        "no matching function",
    ),
    "threadgroup atomic float": (
        body("threadgroup atomic_float s; atomic_fetch_add_explicit(&s, 1.0f, memory_order_relaxed); x[i] = 1;"),
        "deleted function",
    ),
    "threadgroup memory index 31": (
        "kernel void k(device float* x, threadgroup float* s [[threadgroup(31)]]) { x[0] = s[0]; }",
        "threadgroup memory index 31 is not in 0..30",
    ),
    "half product of float matrices": (
        body(
            "simdgroup_matrix<float, 8, 8> a, b; simdgroup_matrix<half, 8, 8> c; simdgroup_multiply(c, a, b); x[i] = 1;"
        ),
        "no matching function",
    ),
    "two instantiations with one name": (
        "template <typename T> kernel void f(device T* x [[buffer(0)]]) { x[0] = 1; }\n"
        'template [[host_name("k")]] kernel void f<float>(device float*);\n'
        'template [[host_name("k")]] kernel void f<half>(device half*);',
        "two kernels have the name 'k'",
    ),
    "misspelt attribute": (
        "kernel void k(device float* x [[bufer(0)]]) { x[0] = 1; }",
        "unknown attribute 'bufer'",
    ),
    "as_type of other components": (
        body("float4 v = as_type<float4>(uint3(1)); x[i] = v.x;"),
        "same number of components",
    ),
    "printf": (body('printf("%f", x[i]);'), "undeclared identifier"),
}

WITHOUT_PREFIX: dict[str, tuple[str, str]] = {
    "no include of metal_stdlib": ("using namespace metal;\n" + body("x[i] = 1;"), "missing"),
}
