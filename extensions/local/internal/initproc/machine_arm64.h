// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// The machine that program.h is written for, on arm64. A system call leaves
// all registers but the result alone.

#define FR R19
#define V0 R20
#define V1 R21
#define V2 R22
#define V3 R23
#define RES R0
#define A0 R0
#define A1 R1
#define A2 R2
#define A3 R3
#define A4 R4
#define A5 R5

#define START(size) MOVD RSP, FR; MOVD $size, R9; SUB R9, FR; AND $-64, FR; MOVD FR, RSP
#define MOVI(v, d) MOVD $v, d
#define MOV(s, d) MOVD s, d
#define LEA(off, d) MOVD $off, R9; ADD R9, FR, d
#define LD(off, base, d) MOVD off(base), d
#define LDW(off, base, d) MOVWU off(base), d
#define ST(s, off) MOVD s, off(FR)
#define STW(s, off) MOVW s, off(FR)
#define STWX(s, off, base) MOVW s, off(base)
#define STI(v, off) MOVD $v, R9; MOVD R9, off(FR)
#define STWI(v, off) MOVD $v, R9; MOVW R9, off(FR)
#define STH(s, off) MOVH s, off(FR)
#define ADDI(v, d) ADD $v, d
#define ADD2(s, d) ADD s, d
#define SUB2(s, d) SUB s, d
#define ANDI(v, d) AND $v, d
#define NEGATE(d) NEG d, d
#define CALLI(nr) MOVD $nr, R8; SVC
#define CALLR(r) MOVD r, R8; SVC
#define GOTO(l) B l
#define IFEQ(r, v, l) CMP $v, r; BEQ l
#define IFNE(r, v, l) CMP $v, r; BNE l
#define IFLT(r, v, l) CMP $v, r; BLT l
#define IFLE(r, v, l) CMP $v, r; BLE l
#define IFGT(r, v, l) CMP $v, r; BGT l
#define IFGE(r, v, l) CMP $v, r; BGE l
#define IFNER(r, s, l) CMP s, r; BNE l
#define IFGER(r, s, l) CMP s, r; BGE l

#define SYS_dup3 24
#define SYS_openat 56
#define SYS_close 57
#define SYS_pipe2 59
#define SYS_read 63
#define SYS_write 64
#define SYS_pread64 67
#define SYS_ppoll 73
#define SYS_exit 93
#define SYS_exit_group 94
#define SYS_rt_sigaction 134
#define SYS_socket 198
#define SYS_bind 200
#define SYS_setsockopt 208
#define SYS_sendmsg 211
#define SYS_recvmsg 212
#define SYS_munmap 215
#define SYS_clone 220
#define SYS_mmap 222
#define SYS_wait4 260
#define SYS_close_range 436
