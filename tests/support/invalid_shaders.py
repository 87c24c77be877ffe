"""Shaders that Apple's compiler rejects: a name, the text, and a part of the reason.

Names say what is wrong. All but those of ``WITHOUT_PREFIX`` follow an include of <metal_stdlib>.
"""

KERNEL = "kernel void k(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {{ {} }}"


def body(text: str) -> str:
    return KERNEL.format(text)


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
    "recursion": (
        "float f(float v) { return v < 1 ? v : f(v - 1); }\n" + body("x[i] = f(x[i]);"),
        "recursion is not supported",
    ),
    "mutual recursion": (
        "float g(float v);\nfloat f(float v) { return v < 1 ? v : g(v - 1); }\n"
        "float g(float v) { return f(v / 2); }\n" + body("x[i] = f(x[i]);"),
        "recursion is not supported",
    ),
    "variable length array": (body("float a[i]; x[i] = a[0];"), "not a constant expression"),
    "printf": (body('printf("%f", x[i]);'), "undeclared identifier"),
}

WITHOUT_PREFIX: dict[str, tuple[str, str]] = {
    "no include of metal_stdlib": ("using namespace metal;\n" + body("x[i] = 1;"), "missing"),
}
