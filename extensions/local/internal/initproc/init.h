// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// The init, PID 1 of every sandbox. What it does is in initproc.go; it is
// written once, in the instructions of machine_GOARCH.h.

// The frame.
#define F_SCRATCH 0
#define F_ADDR 64
#define F_IOV 96
#define F_MSG 128
#define F_BUF 192
#define F_REPORT 208
#define F_CTL 256
#define CTL_SIZE 128

// Where a request is read to, and how large it may be: see request.go.
#define BASE 0x200000000
#define END 0x200800000
#define MAX 0x800000

#define IGNORE(signal) \
	STI(1, F_SCRATCH); STI(0, F_SCRATCH+8); STI(0, F_SCRATCH+16); STI(0, F_SCRATCH+24); \
	MOVI(signal, A0); LEA(F_SCRATCH, A1); MOVI(0, A2); MOVI(8, A3); CALLI(SYS_rt_sigaction)

// The address of the init's socket: abstract, "sandboxer-run".
#define ADDRESS STI(0x62646e6173000001, F_ADDR); STI(0x6e75722d7265786f, F_ADDR+8)

#define MESSAGE(name, namelen, control, size) \
	STI(name, F_MSG); STI(namelen, F_MSG+8); LEA(F_IOV, A0); ST(A0, F_MSG+16); STI(1, F_MSG+24); \
	LEA(F_CTL, A0); ST(A0, F_MSG+32); STI(size, F_MSG+40); STI(0, F_MSG+48); \
	LEA(F_BUF, A0); ST(A0, F_IOV); STI(8, F_IOV+8)

// Memory for a request, at its address.
#define MAP \
	MOVI(BASE, A0); MOVI(MAX, A1); MOVI(3, A2); MOVI(0x32, A3); MOVI(-1, A4); MOVI(0, A5); CALLI(SYS_mmap)

TEXT ·initCode(SB), NOSPLIT|NOFRAME, $0-0
	START(0x1000)
	// Children that nobody waits for are reaped by the kernel, and a report
	// that nobody reads is no reason to die.
	IGNORE(17)
	IGNORE(13)

	// V0 is the socket: socket(AF_UNIX, SOCK_DGRAM|SOCK_CLOEXEC), with
	// SO_PASSCRED before it has a name.
	MOVI(1, A0); MOVI(0x80002, A1); MOVI(0, A2); CALLI(SYS_socket)
	MOV(RES, V0)
	STI(1, F_SCRATCH)
	MOV(V0, A0); MOVI(1, A1); MOVI(16, A2); LEA(F_SCRATCH, A3); MOVI(4, A4); CALLI(SYS_setsockopt)
	ADDRESS
	MOV(V0, A0); LEA(F_ADDR, A1); MOVI(16, A2); CALLI(SYS_bind)
	IFLT(RES, 0, gated)
	STWI(6, F_REPORT); STWI(0, F_REPORT+4); STI(0, F_REPORT+8)
	MOVI(2, A0); LEA(F_REPORT, A1); MOVI(16, A2); CALLI(SYS_write)

gated:
	// The gate: the main process's request, or nothing, and then the end.
	MAP
	MOVI(BASE, V1)

gate:
	MOVI(0, A0); MOV(V1, A1); MOVI(END, A2); SUB2(V1, A2); CALLI(SYS_read)
	IFEQ(RES, -4, gate)
	IFLE(RES, 0, open)
	ADD2(RES, V1)
	GOTO(gate)

open:
	MOVI(BASE, V2)
	IFGER(V2, V1, serve)
	MOVI(17, A0); MOVI(0, A1); MOVI(0, A2); MOVI(0, A3); MOVI(0, A4); CALLI(SYS_clone)
	IFNE(RES, 0, serve)
	// The main process's shepherd reports to standard error.
	MOVI(2, A0); MOVI(100, A1); MOVI(0x80000, A2); CALLI(SYS_dup3)
	GOTO(run)

serve:
	MOVI(BASE, A0); MOVI(MAX, A1); CALLI(SYS_munmap)

receive:
	MESSAGE(0, 0, F_CTL, CTL_SIZE)
	MOV(V0, A0); LEA(F_MSG, A1); MOVI(0x40000000, A2); CALLI(SYS_recvmsg)
	IFLT(RES, 0, receive)
	// V1 walks the control messages, V2 becomes the descriptors, V3 is set
	// when the sender is root: for anyone else to be served would be for them
	// to become root.
	LEA(F_CTL, V1)
	MOVI(0, V2)
	MOVI(0, V3)

control:
	// The end of what was received.
	LEA(F_CTL, A0); LD(F_MSG+40, FR, A1); ADD2(A1, A0); ADDI(-16, A0)
	MOV(V1, A1)
	IFGER(A1, A0, checked)
	LDW(12, V1, A2)
	IFEQ(A2, 2, credentials)
	IFNE(A2, 1, following)
	LD(0, V1, A2)
	MOV(V1, V2)
	GOTO(following)

credentials:
	LDW(20, V1, A2)
	IFNE(A2, 0, following)
	MOVI(1, V3)

following:
	LD(0, V1, A2); ADDI(7, A2); ANDI(-8, A2)
	IFLE(A2, 0, checked)
	ADD2(A2, V1)
	GOTO(control)

checked:
	IFEQ(V2, 0, receive)
	IFEQ(V3, 0, release)
	LD(0, V2, A2)
	IFNE(A2, 36, release)
	MOVI(17, A0); MOVI(0, A1); MOVI(0, A2); MOVI(0, A3); MOVI(0, A4); CALLI(SYS_clone)
	IFEQ(RES, 0, shepherd)

release:
	// Close what was received.
	LD(0, V2, V1); ADD2(V2, V1); ADDI(16, V2)

closing:
	IFGER(V2, V1, receive)
	LDW(0, V2, A0); CALLI(SYS_close)
	ADDI(4, V2)
	GOTO(closing)

shepherd:
	// Its descriptors get numbers that the request can name: 100 report, 101
	// request, 102 to 104 standard streams.
	ADDI(16, V2)
	MOVI(100, V1)

placing:
	LDW(0, V2, A0); MOV(V1, A1); MOVI(0x80000, A2); CALLI(SYS_dup3)
	ADDI(4, V2)
	ADDI(1, V1)
	IFLT(V1, 105, placing)
	MAP
	MOVI(BASE, V1)

reading:
	MOVI(101, A0); MOV(V1, A1); MOVI(END, A2); SUB2(V1, A2); CALLI(SYS_read)
	IFEQ(RES, -4, reading)
	IFLE(RES, 0, run)
	ADD2(RES, V1)
	GOTO(reading)

run:
	// V0 walks the steps of the request, V1 is the most telling error of those
	// that may fail: ENOENT when there is no other.
	MOVI(BASE+16, V0)
	MOVI(2, V1)

step:
	LD(0, V0, V2)
	IFEQ(V2, -1, fork)
	MOV(V1, V3)
	IFEQ(V2, -2, failed)
	LD(8, V0, A0); LD(16, V0, A1); LD(24, V0, A2); LD(32, V0, A3); LD(40, V0, A4); LD(48, V0, A5)
	CALLR(V2)
	IFGE(RES, 0, done)
	MOV(RES, V3)
	NEGATE(V3)
	LD(56, V0, V2)
	IFEQ(V2, 1, failed)
	IFEQ(V2, 0, done)
	IFEQ(V3, 2, done)
	MOV(V3, V1)

done:
	ADDI(64, V0)
	GOTO(step)

failed:
	STWI(3, F_REPORT); STW(V3, F_REPORT+4)
	MOVI(BASE, A0); SUB2(A0, V0); ST(V0, F_REPORT+8)
	MOVI(100, A0); LEA(F_REPORT, A1); MOVI(16, A2); CALLI(SYS_write)
	MOVI(127, A0); CALLI(SYS_exit_group)

fork:
	// clone(CLONE_VM|CLONE_VFORK|SIGCHLD): the child has the memory until it
	// executes its program, and we sleep until then.
	MOVI(0x4111, A0); MOVI(0, A1); MOVI(0, A2); MOVI(0, A3); MOVI(0, A4); CALLI(SYS_clone)
	IFEQ(RES, 0, done)
	MOV(RES, V3)
	NEGATE(V3)
	IFGE(V3, 0, failed)
	MOV(RES, V2)
	MOVI(0, A0); MOVI(99, A1); MOVI(0, A2); CALLI(SYS_close_range)
	MOVI(101, A0); MOVI(0x7fffffff, A1); MOVI(0, A2); CALLI(SYS_close_range)
	STWI(1, F_REPORT); STW(V2, F_REPORT+4); STI(0, F_REPORT+8)
	MOVI(100, A0); LEA(F_REPORT, A1); MOVI(16, A2); CALLI(SYS_write)

wait:
	MOVI(-1, A0); LEA(F_SCRATCH, A1); MOVI(0, A2); MOVI(0, A3); CALLI(SYS_wait4)
	IFEQ(RES, -4, wait)
	IFLT(RES, 0, over)
	IFNER(RES, V2, wait)
	LDW(F_SCRATCH, FR, V3)
	STWI(2, F_REPORT); STW(V3, F_REPORT+4)
	MOVI(100, A0); LEA(F_REPORT, A1); MOVI(16, A2); CALLI(SYS_write)

over:
	MOVI(0, A0); CALLI(SYS_exit_group)
