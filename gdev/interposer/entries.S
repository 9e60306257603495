// The functions that the interposer exports under the driver's names, and its hooks of the loader.
//
// An entry jumps through its place in gdev_entries, so arguments of all types pass as they are. A
// place is zero until the first call of its function, which asks gdev_resolve() what to put there: a
// program that calls no driver function pays for no relocation, and no driver is loaded.
//
// The hooks of dlopen, dlmopen and dlsym jump to the loader's functions too, because those look at
// their return address to find out who calls.
#if !defined(__x86_64__)
#error "The interposer's entries are written for x86-64 only."
#endif

    .text

// Calls a function that may change all registers for arguments, and keeps these.
.macro save_arguments
    pushq %rbp
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %rbp, 0
    movq %rsp, %rbp
    .cfi_def_cfa_register %rbp
    pushq %rdi
    pushq %rsi
    pushq %rdx
    pushq %rcx
    pushq %r8
    pushq %r9
    pushq %rax              // the number of vector registers, if the function takes any number
    pushq %r10
    subq $128, %rsp
    movups %xmm0, (%rsp)
    movups %xmm1, 16(%rsp)
    movups %xmm2, 32(%rsp)
    movups %xmm3, 48(%rsp)
    movups %xmm4, 64(%rsp)
    movups %xmm5, 80(%rsp)
    movups %xmm6, 96(%rsp)
    movups %xmm7, 112(%rsp)
.endm

.macro restore_arguments
    movups (%rsp), %xmm0
    movups 16(%rsp), %xmm1
    movups 32(%rsp), %xmm2
    movups 48(%rsp), %xmm3
    movups 64(%rsp), %xmm4
    movups 80(%rsp), %xmm5
    movups 96(%rsp), %xmm6
    movups 112(%rsp), %xmm7
    addq $128, %rsp
    popq %r10
    popq %rax
    popq %r9
    popq %r8
    popq %rcx
    popq %rdx
    popq %rsi
    popq %rdi
    popq %rbp
    .cfi_def_cfa %rsp, 8
.endm

// --- The driver's functions ---

    .globl gdev_entries_begin
    .hidden gdev_entries_begin
gdev_entries_begin:

.macro entry index, name
    .globl \name
    .type \name, @function
    .p2align 4
\name:
    .cfi_startproc
    endbr64
    movq gdev_entries + 8 * \index(%rip), %r11
    testq %r11, %r11
    je 1f
    jmp *%r11
1:  movl $\index, %r11d
    jmp first_call
    .cfi_endproc
    .size \name, . - \name
.endm

#define GDEV_FUNCTION(index, name, kind) entry index, name
#include "functions.inc"
#undef GDEV_FUNCTION

    .globl gdev_entries_end
    .hidden gdev_entries_end
gdev_entries_end:

    .type first_call, @function
first_call:
    .cfi_startproc
    save_arguments
    movl %r11d, %edi
    call gdev_resolve
    movq %rax, %r11
    restore_arguments
    jmp *%r11
    .cfi_endproc
    .size first_call, . - first_call

// --- The loader's functions ---

// void* dlopen(const char* name, int flags)
    .globl dlopen
    .type dlopen, @function
    .p2align 4
dlopen:
    .cfi_startproc
    endbr64
    save_arguments
    call gdev_name_to_open
    movq %rax, -8(%rbp)     // the saved %rdi
    restore_arguments
    movq gdev_loader_dlopen(%rip), %r11
    jmp *%r11
    .cfi_endproc
    .size dlopen, . - dlopen

// void* dlmopen(Lmid_t space, const char* name, int flags)
    .globl dlmopen
    .type dlmopen, @function
    .p2align 4
dlmopen:
    .cfi_startproc
    endbr64
    save_arguments
    call gdev_name_to_open_in
    movq %rax, -16(%rbp)    // the saved %rsi
    restore_arguments
    movq gdev_loader_dlmopen(%rip), %r11
    jmp *%r11
    .cfi_endproc
    .size dlmopen, . - dlmopen

// void* dlsym(void* handle, const char* name)
    .globl dlsym
    .type dlsym, @function
    .p2align 4
dlsym:
    .cfi_startproc
    endbr64
    save_arguments
    call gdev_find_symbol   // %rax: what was found; %rdx: 0 if the loader is to find it
    movq %rax, %r11
    testq %rdx, %rdx
    je 1f
    restore_arguments
    movq %r11, %rax
    ret
    .cfi_endproc
    .cfi_startproc
    .cfi_def_cfa %rbp, 16
    .cfi_offset %rbp, -16
1:  restore_arguments
    movq gdev_loader_dlsym(%rip), %r11
    jmp *%r11
    .cfi_endproc
    .size dlsym, . - dlsym

    .section .note.GNU-stack, "", @progbits
