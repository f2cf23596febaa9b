// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/rootfs"
)

func listen() (*net.UnixListener, error) {
	path := rootfs.PrivateSandbox + "/" + SocketName
	_ = os.Remove(path)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	return listener, os.Chmod(path, 0o600)
}

// accept serves clients until the process ends.
func (s *supervisor) accept() {
	for {
		conn, err := s.socket.AcceptUnix()
		if err != nil {
			fmt.Fprintln(os.Stderr, "accept:", err)
			time.Sleep(100 * time.Millisecond) // out of descriptors, for one
			continue
		}
		go s.handle(conn)
	}
}

// handle serves one request. The context ends when the client goes away.
func (s *supervisor) handle(conn *net.UnixConn) {
	defer conn.Close()
	r, files, err := receiveRequest(conn)
	if err != nil {
		return
	}
	defer closeAll(files)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		// Clients say nothing after the request, so any end of the read is
		// the end of the client.
		_, _ = conn.Read(make([]byte, 1))
		cancel()
	}()
	result, err := s.do(ctx, r, files)
	if err != nil {
		result.Error = err.Error()
	}
	result.Done = true
	_ = conn.SetWriteDeadline(time.Now().Add(requestTime))
	_ = json.NewEncoder(conn).Encode(result)
}

// recheck lets the loop of serve read the record again.
func (s *supervisor) recheck() {
	select {
	case s.poke <- struct{}{}:
	default: // a look is due already
	}
}

func (s *supervisor) do(ctx context.Context, r request, files []*os.File) (answer, error) {
	switch r.Op {
	case "poke":
		s.recheck()
		return answer{}, nil
	case "usage":
		u, err := s.usage()
		return answer{Usage: &u}, err
	case "exec":
		if r.Exec == nil || len(files) != 3 {
			return answer{}, errors.New("exec wants a command and three descriptors")
		}
		end, err := s.activity.begin()
		if err != nil {
			return answer{Ending: true}, err
		}
		defer end()
		return s.exec(ctx, *r.Exec, [3]*os.File(files))
	case "helper":
		if len(files) != 3 {
			return answer{}, errors.New("helper wants three descriptors")
		}
		if len(r.Args) == 0 || r.Args[0] != "strays" { // which looks, and does nothing
			end, err := s.activity.begin()
			if err != nil {
				return answer{Ending: true}, err
			}
			defer end()
		}
		return s.execHelper(ctx, r.Args, [3]*os.File(files))
	case "pause", "resume":
		err := s.suspend(ctx, r.Op)
		return answer{Ending: errors.Is(err, errEnding)}, err
	case "snapshot":
		if len(files) != 1 {
			return answer{}, errors.New("snapshot wants a directory")
		}
		return s.checkpoint(ctx, r.Kind, r.Deadline, files[0])
	}
	return answer{}, fmt.Errorf("no operation %q", r.Op)
}
