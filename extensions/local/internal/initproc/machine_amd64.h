// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// The machine that program.h is written for, on amd64. Registers that a
// system call leaves alone: FR, V0 to V3.

#define FR BX
#define V0 R12
#define V1 R13
#define V2 R14
#define V3 R15
#define RES AX
#define A0 DI
#define A1 SI
#define A2 DX
#define A3 R10
#define A4 R8
#define A5 R9

#define START(size) MOVQ SP, FR; SUBQ $size, FR; ANDQ $-64, FR; MOVQ FR, SP
#define MOVI(v, d) MOVQ $v, d
#define MOV(s, d) MOVQ s, d
#define LEA(off, d) LEAQ off(FR), d
#define LD(off, base, d) MOVQ off(base), d
#define LDW(off, base, d) MOVL off(base), d
#define ST(s, off) MOVQ s, off(FR)
#define STW(s, off) MOVL s, off(FR)
#define STWX(s, off, base) MOVL s, off(base)
#define STI(v, off) MOVQ $v, CX; MOVQ CX, off(FR)
#define STWI(v, off) MOVL $v, off(FR)
#define STH(s, off) MOVW s, off(FR)
#define ADDI(v, d) ADDQ $v, d
#define ADD2(s, d) ADDQ s, d
#define SUB2(s, d) SUBQ s, d
#define ANDI(v, d) ANDQ $v, d
#define NEGATE(d) NEGQ d
#define CALLI(nr) MOVQ $nr, AX; SYSCALL
#define CALLR(r) MOVQ r, AX; SYSCALL
#define GOTO(l) JMP l
#define IFEQ(r, v, l) CMPQ r, $v; JEQ l
#define IFNE(r, v, l) CMPQ r, $v; JNE l
#define IFLT(r, v, l) CMPQ r, $v; JLT l
#define IFLE(r, v, l) CMPQ r, $v; JLE l
#define IFGT(r, v, l) CMPQ r, $v; JGT l
#define IFGE(r, v, l) CMPQ r, $v; JGE l
#define IFNER(r, s, l) CMPQ r, s; JNE l
#define IFGER(r, s, l) CMPQ r, s; JGE l

#define SYS_read 0
#define SYS_write 1
#define SYS_close 3
#define SYS_mmap 9
#define SYS_munmap 11
#define SYS_rt_sigaction 13
#define SYS_pread64 17
#define SYS_socket 41
#define SYS_sendmsg 46
#define SYS_recvmsg 47
#define SYS_bind 49
#define SYS_setsockopt 54
#define SYS_clone 56
#define SYS_exit 60
#define SYS_wait4 61
#define SYS_exit_group 231
#define SYS_openat 257
#define SYS_ppoll 271
#define SYS_dup3 292
#define SYS_pipe2 293
#define SYS_close_range 436
