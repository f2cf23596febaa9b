// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux && (amd64 || arm64)

// Package initproc makes the init that is PID 1 of every sandbox, and the
// courier that brings it work: static programs of a few kilobytes that work
// in any root filesystem, however empty, and start in no time.
//
// A memory snapshot keeps PID 1's tree and nothing else: what the runtime
// itself started for an exec is killed in the restored copy. So everything is
// started by the init. It waits until its standard input ends (the gate:
// files, secrets and policy are in place by then), starts the main process
// from the [Request] that it read there, and then takes one request after the
// other from a socket, and gives each a shepherd: a child that does the
// request's steps, waits for the command and reports its end.
//
// The runtime starts the courier, with an exec's streams and its request. The
// courier makes pipes for the streams inside the sandbox, hands their ends
// with the request to the init, and carries bytes and reports until the
// command has ended. It is killed in a restored copy, and what it served then
// sees the ends of its pipes, as it would if its client went away. Host
// descriptors themselves are never handed over: in a restored copy they would
// be dead ones, and the runtime dies of some uses of such.
//
// The init serves root alone. It runs with what root has in the sandbox, so
// nobody gains anything by asking it.
//
// The code is Go assembly of this package, copied out of the running binary
// behind an ELF header: no prebuilt blob, no second build step.
package initproc

import (
	"encoding/binary"
	"runtime"
	"unsafe"
)

// Path is where the init lies in every root filesystem that we compose.
const Path = "/.sandboxer-init"

// Version changes with the code, because roots that hold the init are cached
// and memory snapshots hold it as well.
const Version = "2"

const (
	loadAddr   = 0x400000
	headerSize = 64 + 56
	pageSize   = 4096
)

// Flags of a segment.
const (
	executable = 1
	writable   = 2
	readable   = 4
)

// initCode and courierCode are the programs; see init.h and courier.h.
func initCode()    //nolint:unused // its body is assembly, and assembly takes its address
func courierCode() //nolint:unused // as above

// initAddr returns the address of initCode.
func initAddr() unsafe.Pointer

// courierAddr returns the address of courierCode.
func courierAddr() unsafe.Pointer

// Init returns the init as an ELF executable for this architecture.
func Init() []byte { return program(initAddr(), readable|executable) }

// Courier returns the courier as an ELF executable for this architecture. It
// writes to its page to make it its own: see courier.h.
func Courier() []byte { return program(courierAddr(), readable|writable|executable) }

// program puts an ELF header in front of code. Together they are one page.
func program(code unsafe.Pointer, flags uint32) []byte {
	// The code ends where another function begins.
	size := uintptr(0)
	for f := runtime.FuncForPC(uintptr(code)); runtime.FuncForPC(uintptr(code)+size) == f; {
		size += 4
	}
	text := unsafe.Slice((*byte)(code), size)
	machine := uint16(62) // EM_X86_64
	if runtime.GOARCH == "arm64" {
		machine = 183 // EM_AARCH64
	}
	le := binary.LittleEndian
	total := headerSize + uint64(size)
	b := make([]byte, headerSize, total)
	copy(b, "\x7fELF\x02\x01\x01")
	le.PutUint16(b[16:], 2) // ET_EXEC
	le.PutUint16(b[18:], machine)
	le.PutUint32(b[20:], 1)
	le.PutUint64(b[24:], loadAddr+headerSize) // entry
	le.PutUint64(b[32:], 64)                  // program headers
	le.PutUint16(b[52:], 64)
	le.PutUint16(b[54:], 56)
	le.PutUint16(b[56:], 1)
	le.PutUint32(b[64:], 1) // PT_LOAD
	le.PutUint32(b[68:], flags)
	le.PutUint64(b[80:], loadAddr)
	le.PutUint64(b[88:], loadAddr)
	le.PutUint64(b[96:], total)
	le.PutUint64(b[104:], total)
	le.PutUint64(b[112:], pageSize)
	return append(b, text...)
}
