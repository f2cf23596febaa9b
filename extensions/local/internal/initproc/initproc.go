// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux && (amd64 || arm64)

// Package initproc makes the init that is PID 1 of every sandbox: a static
// program of a few hundred bytes that works in any root filesystem, however
// empty, and starts in no time.
//
// It waits until its standard input ends (the gate: files, secrets and policy
// are in place by then), starts the profile's command as a child, and then
// sleeps for ever. So the sandbox stays usable after the command has ended,
// orphans are reaped, and the command is part of PID 1's tree, the only one
// that a memory snapshot keeps.
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

// Version changes with the code, because roots that hold the init are cached.
const Version = "1"

const (
	loadAddr   = 0x400000
	headerSize = 64 + 56
	// codeSize is more than the code needs; what follows it in our own text
	// segment is never reached.
	codeSize = 512
)

// code is the program; see the assembly files.
func code() //nolint:unused // its body is assembly, and assembly takes its address

// codeAddr returns the address of code.
func codeAddr() unsafe.Pointer

// Binary returns the init as an ELF executable for this architecture.
func Binary() []byte {
	text := unsafe.Slice((*byte)(codeAddr()), codeSize)
	machine := uint16(62) // EM_X86_64
	if runtime.GOARCH == "arm64" {
		machine = 183 // EM_AARCH64
	}
	le := binary.LittleEndian
	b := make([]byte, headerSize, headerSize+codeSize)
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
	le.PutUint32(b[68:], 5) // R+X
	le.PutUint64(b[80:], loadAddr)
	le.PutUint64(b[88:], loadAddr)
	le.PutUint64(b[96:], headerSize+codeSize)
	le.PutUint64(b[104:], headerSize+codeSize)
	le.PutUint64(b[112:], 4096)
	return append(b, text...)
}

// Args returns the init's argument vector. The init tries the candidates in
// order; on failure it writes message to standard error.
func Args(candidates, command []string, message string) []string {
	if len(command) == 0 {
		return []string{Path}
	}
	args := append([]string{Path, message}, candidates...)
	args = append(args, "")
	return append(args, command...)
}
