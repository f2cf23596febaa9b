// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

// What a client and a supervisor say to each other over the socket: one
// request with the descriptors that it is about, then answers, one JSON value
// each. The socket lies in the sandbox's directory, which only its owner can
// enter. A client that closes the connection cancels its request.

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// SocketName is the supervisor's socket in the sandbox's directory.
	SocketName  = "sock"
	maxRequest  = 8 << 20
	maxPassed   = 4 // descriptors in one request
	requestTime = 10 * time.Second
)

// request is one request. Op says which of the rest counts.
type request struct {
	Op       string        // poke, usage, exec, helper, pause, resume, snapshot
	Exec     *execRequest  `json:",omitempty"`
	Args     []string      `json:",omitempty"` // of helper
	Kind     string        `json:",omitempty"` // of snapshot
	Deadline time.Duration `json:",omitempty"`
}

// execRequest is a command to run. Its three descriptors are passed along.
type execRequest struct {
	Command []string
	Env     []string
	Workdir string
	User    string // numeric uid[:gid], a name, or empty for the main process's
	Timeout time.Duration
	// Null are the streams that are the null device; what is passed along for
	// them counts for nothing.
	Null [3]bool
}

// answer is one answer. The last one has Done set.
type answer struct {
	Done     bool   `json:",omitempty"`
	Error    string `json:",omitempty"`
	NotFound bool   `json:",omitempty"` // the command, with Error
	// NotExecutable is a command that is there and is no program, with Error.
	NotExecutable bool   `json:",omitempty"`
	Ending        bool   `json:",omitempty"` // why it was refused, with Error
	ExitCode      int    `json:",omitempty"`
	TimedOut      bool   `json:",omitempty"`
	Made          *Made  `json:",omitempty"` // of snapshot
	Usage         *Usage `json:",omitempty"` // of usage
}

// sendRequest writes a length, with the descriptors, and the request.
func sendRequest(conn *net.UnixConn, r request, files []*os.File) error {
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if len(body) > maxRequest {
		return fmt.Errorf("the request is %d bytes, and %d is the most", len(body), maxRequest)
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	head := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
	if _, _, err := conn.WriteMsgUnix(head, unix.UnixRights(fds...), nil); err != nil {
		return err
	}
	_, err = conn.Write(body)
	return err
}

func receiveRequest(conn *net.UnixConn) (r request, files []*os.File, err error) {
	defer func() {
		if err != nil {
			closeAll(files)
			files = nil
		}
	}()
	_ = conn.SetReadDeadline(time.Now().Add(requestTime))
	head, oob := make([]byte, 4), make([]byte, unix.CmsgSpace(4*maxPassed))
	n, oobn, _, _, err := conn.ReadMsgUnix(head, oob)
	if err != nil {
		return r, nil, err
	}
	if files, err = receivedFiles(oob[:oobn]); err != nil {
		return r, files, err
	}
	if n < len(head) {
		if _, err := io.ReadFull(conn, head[n:]); err != nil {
			return r, files, err
		}
	}
	size := binary.BigEndian.Uint32(head)
	if size > maxRequest {
		return r, files, fmt.Errorf("a request of %d bytes", size)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(conn, body); err != nil {
		return r, files, err
	}
	_ = conn.SetReadDeadline(time.Time{})
	return r, files, json.Unmarshal(body, &r)
}

func receivedFiles(oob []byte) (files []*os.File, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "passed"))
		}
	}
	if len(files) > maxPassed {
		return files, errors.New("too many descriptors")
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}
