// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

#include "textflag.h"
#include "machine_amd64.h"
#include "init.h"
#include "courier.h"

// func initAddr() unsafe.Pointer
TEXT ·initAddr(SB), NOSPLIT, $0-8
	LEAQ ·initCode(SB), AX
	MOVQ AX, ret+0(FP)
	RET

// func courierAddr() unsafe.Pointer
TEXT ·courierAddr(SB), NOSPLIT, $0-8
	LEAQ ·courierCode(SB), AX
	MOVQ AX, ret+0(FP)
	RET
