// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

#include "textflag.h"

// func codeAddr() unsafe.Pointer
TEXT ·codeAddr(SB), NOSPLIT, $0-8
	MOVD $·code(SB), R0
	MOVD R0, ret+0(FP)
	RET

// The init, as in init_amd64.s. R19 keeps the address of argc.
TEXT ·code(SB), NOSPLIT|NOFRAME, $0-0
	MOVD RSP, R19
	SUB  $64, RSP

	MOVD $1, R0
	MOVD R0, 0(RSP)
	MOVD ZR, 8(RSP)
	MOVD ZR, 16(RSP)
	MOVD ZR, 24(RSP)
	MOVD $17, R0
	MOVD RSP, R1
	MOVD ZR, R2
	MOVD $8, R3
	MOVD $134, R8
	SVC

gate:
	MOVD ZR, R0
	ADD  $32, RSP, R1
	MOVD $1, R2
	MOVD $63, R8
	SVC
	CMN  $4, R0
	BEQ  gate
	CMP  $0, R0
	BGT  gate

	MOVD 0(R19), R0
	CMP  $1, R0
	BLE  idle

	MOVD $17, R0
	MOVD ZR, R1
	MOVD ZR, R2
	MOVD ZR, R3
	MOVD ZR, R4
	MOVD $220, R8
	SVC
	CMP  $0, R0
	BNE  idle

	MOVD ZR, 0(RSP)
	MOVD $17, R0
	MOVD RSP, R1
	MOVD ZR, R2
	MOVD $8, R3
	MOVD $134, R8
	SVC
	MOVD $157, R8
	SVC

	ADD  $24, R19, R20
	MOVD R20, R21

scan:
	MOVD 0(R21), R0
	ADD  $8, R21
	MOVBU 0(R0), R1
	CMP  $0, R1
	BNE  scan

	MOVD 0(R19), R0
	LSL  $3, R0, R0
	ADD  $16, R19, R22
	ADD  R0, R22

try:
	MOVD 0(R20), R0
	MOVBU 0(R0), R1
	CMP  $0, R1
	BEQ  fail
	MOVD R21, R1
	MOVD R22, R2
	MOVD $221, R8
	SVC
	ADD  $8, R20
	B    try

fail:
	MOVD 16(R19), R1
	MOVD ZR, R2

length:
	MOVBU (R1)(R2), R3
	CMP  $0, R3
	BEQ  say
	ADD  $1, R2
	B    length

say:
	MOVD $2, R0
	MOVD $64, R8
	SVC
	MOVD $127, R0
	MOVD $94, R8
	SVC

idle:
	// ppoll(NULL, 0, NULL, NULL): arm64 has no pause.
	MOVD ZR, R0
	MOVD ZR, R1
	MOVD ZR, R2
	MOVD ZR, R3
	MOVD $73, R8
	SVC
	B    idle
