// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

#include "textflag.h"

// func codeAddr() unsafe.Pointer
TEXT ·codeAddr(SB), NOSPLIT, $0-8
	LEAQ ·code(SB), AX
	MOVQ AX, ret+0(FP)
	RET

// The init. Entered by the kernel with argc at 0(SP), argv at 8(SP), envp
// behind it. BX keeps that address.
TEXT ·code(SB), NOSPLIT|NOFRAME, $0-0
	MOVQ SP, BX
	SUBQ $64, SP

	// rt_sigaction(SIGCHLD, SIG_IGN): the kernel reaps our children.
	MOVQ $1, AX
	MOVQ AX, 0(SP)
	XORQ AX, AX
	MOVQ AX, 8(SP)
	MOVQ AX, 16(SP)
	MOVQ AX, 24(SP)
	MOVQ $13, AX
	MOVQ $17, DI
	MOVQ SP, SI
	XORQ DX, DX
	MOVQ $8, R10
	SYSCALL

gate:
	// read(0, buf, 1) until it ends.
	XORQ AX, AX
	XORQ DI, DI
	LEAQ 32(SP), SI
	MOVQ $1, DX
	SYSCALL
	CMPQ AX, $-4
	JEQ  gate
	CMPQ AX, $0
	JGT  gate

	// No command: sleep.
	MOVQ 0(BX), AX
	CMPQ AX, $1
	JLE  idle

	// clone(SIGCHLD): a fork.
	MOVQ $56, AX
	MOVQ $17, DI
	XORQ SI, SI
	XORQ DX, DX
	XORQ R10, R10
	XORQ R8, R8
	SYSCALL
	CMPQ AX, $0
	JNE  idle

	// Child: SIGCHLD back to its default, a session of its own.
	XORQ AX, AX
	MOVQ AX, 0(SP)
	MOVQ $13, AX
	MOVQ $17, DI
	MOVQ SP, SI
	XORQ DX, DX
	MOVQ $8, R10
	SYSCALL
	MOVQ $112, AX
	SYSCALL

	// argv: init, message, candidates..., "", command...
	LEAQ 24(BX), R12
	MOVQ R12, R13

scan:
	MOVQ 0(R13), AX
	ADDQ $8, R13
	CMPB 0(AX), $0
	JNE  scan

	// envp is behind argv's null.
	MOVQ 0(BX), AX
	LEAQ 16(BX)(AX*8), R14

try:
	MOVQ 0(R12), DI
	CMPB 0(DI), $0
	JEQ  fail
	MOVQ R13, SI
	MOVQ R14, DX
	MOVQ $59, AX
	SYSCALL
	ADDQ $8, R12
	JMP  try

fail:
	// write(2, message, strlen(message)); exit_group(127).
	MOVQ 16(BX), SI
	XORQ DX, DX

length:
	CMPB 0(SI)(DX*1), $0
	JEQ  say
	INCQ DX
	JMP  length

say:
	MOVQ $1, AX
	MOVQ $2, DI
	SYSCALL
	MOVQ $231, AX
	MOVQ $127, DI
	SYSCALL

idle:
	// pause()
	MOVQ $34, AX
	SYSCALL
	JMP  idle
