// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// The courier, which is what the runtime starts for an exec. What it does is
// in initproc.go.

// The frame, beyond what init.h has.
#define F_POLL 400    // three of struct pollfd: stdout, stderr, reports
#define F_PIPES 432   // report, stdin, stdout, stderr: read and write end
#define F_ZERO 464    // a timespec of nothing
#define F_LAST 480    // the last report
#define F_OUT 0x1000  // 64 KiB
#define F_IN 0x11000  // 64 KiB

// One stream: the null device or a pipe.
#define STREAM(bit, off, pipe, done) \
	MOV(V0, A0); ANDI(bit, A0); IFEQ(A0, 0, pipe); \
	MOVI(-100, A0); LEA(F_SCRATCH, A1); MOVI(0x80002, A2); CALLI(SYS_openat); \
	STW(RES, off); STW(RES, off+4); GOTO(done)

#define PIPE(off) LEA(off, A0); MOVI(0x80000, A1); CALLI(SYS_pipe2)

#define CLOSE(off) LDW(off, FR, A0); CALLI(SYS_close)

// One stream of output: what is there is carried on, and what can't be read
// or not be written any more is closed. V1 counts.
#define CARRY(poll, to, again, shut, next) \
	LDW(poll+4, FR, A0); STWI(1, poll+4); \
	ANDI(0x7fff0000, A0); IFEQ(A0, 0, next); \
	LDW(poll, FR, A0); LEA(F_OUT, A1); MOVI(0x10000, A2); CALLI(SYS_read); \
	IFLE(RES, 0, shut); \
	MOV(RES, V2); LEA(F_OUT, V3); ADDI(1, V1)

TEXT ·courierCode(SB), NOSPLIT|NOFRAME, $0-0
	START(0x22000)
	// The runtime saves no process that has pages of a host's file, and one
	// that was written to is a page of its own. There is only one.
	MOVI(0x400000, V1); LDW(0, V1, A0); STWX(A0, 0, V1)
	IGNORE(13)
	// V0 is the request's flags: which streams are the null device.
	STI(0, F_BUF)
	MOVI(3, A0); LEA(F_BUF, A1); MOVI(8, A2); MOVI(0, A3); CALLI(SYS_pread64)
	LD(F_BUF, FR, V0)
	STI(0x6c756e2f7665642f, F_SCRATCH); STI(0x6c, F_SCRATCH+8) // "/dev/null"
	PIPE(F_PIPES)
	STREAM(1, F_PIPES+8, pipe0, made0)

pipe0:
	PIPE(F_PIPES+8)

made0:
	STREAM(2, F_PIPES+16, pipe1, made1)

pipe1:
	PIPE(F_PIPES+16)

made1:
	STREAM(4, F_PIPES+24, pipe2, made2)

pipe2:
	PIPE(F_PIPES+24)

made2:
	// SCM_RIGHTS: report, request, streams.
	STI(36, F_CTL); STI(0x100000001, F_CTL+8)
	LDW(F_PIPES+4, FR, A0); STW(A0, F_CTL+16)
	STWI(3, F_CTL+20)
	LDW(F_PIPES+8, FR, A0); STW(A0, F_CTL+24)
	LDW(F_PIPES+20, FR, A0); STW(A0, F_CTL+28)
	LDW(F_PIPES+28, FR, A0); STW(A0, F_CTL+32)
	STWI(0, F_CTL+36)
	ADDRESS
	MESSAGE(0, 16, F_CTL, 40)
	LEA(F_ADDR, A0); ST(A0, F_MSG)
	MOVI(1, A0); MOVI(0x80002, A1); MOVI(0, A2); CALLI(SYS_socket)
	MOV(RES, V1)
	MOV(V1, A0); LEA(F_MSG, A1); MOVI(0, A2); CALLI(SYS_sendmsg)
	IFGE(RES, 0, sent)
	NEGATE(RES)
	STWI(4, F_LAST); STW(RES, F_LAST+4); STI(0, F_LAST+8)
	GOTO(report)

sent:
	MOV(V1, A0); CALLI(SYS_close)
	MOVI(3, A0); CALLI(SYS_close)
	CLOSE(F_PIPES+4)
	MOV(V0, A0); ANDI(1, A0)
	IFNE(A0, 0, noinput)
	CLOSE(F_PIPES+8)
	// A thread carries the input: clone(CLONE_VM|CLONE_FS|CLONE_FILES|
	// CLONE_SIGHAND|CLONE_THREAD|CLONE_SYSVSEM). It needs no stack, but one
	// of its own.
	MOVI(0x50f00, A0); LEA(0x21800, A1); MOVI(0, A2); MOVI(0, A3); MOVI(0, A4); CALLI(SYS_clone)
	IFEQ(RES, 0, input)

noinput:
	STI(0x1ffffffff, F_POLL); STI(0x1ffffffff, F_POLL+8); STI(0x1ffffffff, F_POLL+16)
	LDW(F_PIPES, FR, A0); STW(A0, F_POLL+16)
	MOV(V0, A0); ANDI(2, A0)
	IFNE(A0, 0, noout)
	LDW(F_PIPES+16, FR, A0); STW(A0, F_POLL)
	CLOSE(F_PIPES+20)

noout:
	MOV(V0, A0); ANDI(4, A0)
	IFNE(A0, 0, noerr)
	LDW(F_PIPES+24, FR, A0); STW(A0, F_POLL+8)
	CLOSE(F_PIPES+28)

noerr:
	STI(0, F_ZERO); STI(0, F_ZERO+8)
	// Until it is known how it ended: the shepherd is gone without a word.
	STWI(5, F_LAST); STWI(0, F_LAST+4); STI(0, F_LAST+8)

poll:
	MOVI(0, A2)
	LDW(F_POLL+16, FR, A3)
	MOVI(0xffffffff, A4)
	IFNER(A3, A4, block)
	// The command has ended: what it wrote is carried, and what it left
	// behind may go on writing, so there is a bound.
	IFGE(V1, 64, report)
	LEA(F_ZERO, A2)

block:
	LEA(F_POLL, A0); MOVI(3, A1); MOVI(0, A3); MOVI(8, A4); CALLI(SYS_ppoll)
	IFEQ(RES, -4, poll)
	IFLE(RES, 0, report)
	CARRY(F_POLL, 1, writeout, shutout, carryerr)

writeout:
	MOVI(1, A0); MOV(V3, A1); MOV(V2, A2); CALLI(SYS_write)
	IFLE(RES, 0, shutout)
	ADD2(RES, V3)
	SUB2(RES, V2)
	IFGT(V2, 0, writeout)
	GOTO(carryerr)

shutout:
	CLOSE(F_POLL)
	STWI(-1, F_POLL)

carryerr:
	CARRY(F_POLL+8, 2, writeerr, shuterr, carryreport)

writeerr:
	MOVI(2, A0); MOV(V3, A1); MOV(V2, A2); CALLI(SYS_write)
	IFLE(RES, 0, shuterr)
	ADD2(RES, V3)
	SUB2(RES, V2)
	IFGT(V2, 0, writeerr)
	GOTO(carryreport)

shuterr:
	CLOSE(F_POLL+8)
	STWI(-1, F_POLL+8)

carryreport:
	LDW(F_POLL+20, FR, A0)
	STWI(1, F_POLL+20)
	ANDI(0x7fff0000, A0)
	IFEQ(A0, 0, poll)
	LDW(F_POLL+16, FR, A0); LEA(F_REPORT, A1); MOVI(16, A2); CALLI(SYS_read)
	IFLE(RES, 0, ended)
	LDW(F_REPORT, FR, A0)
	IFNE(A0, 1, final)
	MOVI(4, A0); LEA(F_REPORT, A1); MOVI(16, A2); CALLI(SYS_write)
	GOTO(poll)

final:
	LD(F_REPORT, FR, A0); ST(A0, F_LAST)
	LD(F_REPORT+8, FR, A0); ST(A0, F_LAST+8)

ended:
	STWI(-1, F_POLL+16)
	MOVI(0, V1)
	GOTO(poll)

report:
	MOVI(4, A0); LEA(F_LAST, A1); MOVI(16, A2); CALLI(SYS_write)
	MOVI(0, A0); CALLI(SYS_exit_group)

input:
	MOVI(0, A0); LEA(F_IN, A1); MOVI(0x10000, A2); CALLI(SYS_read)
	IFEQ(RES, -4, input)
	IFLE(RES, 0, inputend)
	MOV(RES, V2)
	LEA(F_IN, V3)

writein:
	LDW(F_PIPES+12, FR, A0); MOV(V3, A1); MOV(V2, A2); CALLI(SYS_write)
	IFLE(RES, 0, inputend)
	ADD2(RES, V3)
	SUB2(RES, V2)
	IFGT(V2, 0, writein)
	GOTO(input)

inputend:
	CLOSE(F_PIPES+12)
	MOVI(0, A0); CALLI(SYS_exit)
