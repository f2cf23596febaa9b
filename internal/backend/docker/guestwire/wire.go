// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package guestwire is what the Docker backend and its program inside of a
// container say to each other: the program's place, its verbs, and the frames
// on its standard input. It is small because it is linked into that program.
package guestwire

import (
	"encoding/binary"
	"errors"
	"io"
)

// Where things are in a container.
const (
	Dir     = "/.sandboxer"
	Program = Dir + "/guest"
	Secrets = "/run/secrets"
)

// The verbs of the program.
const (
	// VerbInit is the first process of a sandbox: VerbInit GATE COMMAND....
	// With the gate "secrets" it waits for them on its standard input.
	VerbInit = "init"
	// VerbExec runs a command: VerbExec DIR COMMAND.... Its standard input
	// are frames; the end of it without FrameEnd ends the command.
	VerbExec = "exec"
	// VerbKill kills what carries a mark, and what that has started.
	VerbKill = "kill"
	// VerbTarIn unpacks a tar on standard input below a directory.
	VerbTarIn = "tar-in"
	// VerbTarOut writes a file or a directory to standard output as a tar.
	VerbTarOut = "tar-out"
	// VerbLook looks for credentials and reports what it found: VerbLook
	// EXPECTATION....
	VerbLook = "look"
	// VerbForward accepts connections and carries them on: VerbForward
	// PORT=HOST:PORT....
	VerbForward = "forward"
)

// GateSecrets and GateOpen are the gates of VerbInit.
const (
	GateSecrets = "secrets"
	GateOpen    = "open"
)

// MarkVariable is the variable that everything started by one exec carries.
const MarkVariable = "SANDBOXER_EXEC"

// FailureCode is the exit code of the program when it could not do its own
// work; what was wrong is on standard error.
const FailureCode = 125

// The kinds of frame.
const (
	FrameData = 'd' // some of the command's standard input
	FrameEnd  = 'e' // the end of it
)

// maxFrame bounds a frame; one of more is no frame of ours.
const maxFrame = 64 << 10

// WriteFrame writes one frame. Data of more than a frame holds becomes
// several.
func WriteFrame(w io.Writer, kind byte, data []byte) error {
	for {
		n := min(len(data), maxFrame)
		frame := make([]byte, 5, 5+n)
		frame[0] = kind
		binary.BigEndian.PutUint32(frame[1:], uint32(n))
		if _, err := w.Write(append(frame, data[:n]...)); err != nil {
			return err
		}
		if data = data[n:]; len(data) == 0 {
			return nil
		}
	}
}

// errFrame is met when what comes is no frame.
var errFrame = errors.New("not a frame")

// ReadFrame reads one frame into buffer, which it makes larger when needed.
func ReadFrame(r io.Reader, buffer []byte) (kind byte, data []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, buffer, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > maxFrame || (head[0] != FrameData && head[0] != FrameEnd) {
		return 0, buffer, errFrame
	}
	if cap(buffer) < int(n) {
		buffer = make([]byte, n)
	}
	data = buffer[:n]
	_, err = io.ReadFull(r, data)
	return head[0], data, err
}

// Secret values travel to the gate in the same way: a frame of data is a name
// and, after a zero byte, the value.

// WriteSecret writes one secret. The value has to fit into a frame.
func WriteSecret(w io.Writer, name, value string) error {
	if len(name)+1+len(value) > maxFrame {
		return errFrame
	}
	return WriteFrame(w, FrameData, []byte(name+"\x00"+value))
}

// MaxSecret is the most that a secret's name and value can have together.
const MaxSecret = maxFrame - 1
