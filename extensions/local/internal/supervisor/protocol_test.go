// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

import (
	"encoding/binary"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// connected returns the two ends of a connection.
func connected(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ends := [2]*net.UnixConn{}
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "end")
		conn, err := net.FileConn(file)
		file.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		ends[i] = conn.(*net.UnixConn)
	}
	return ends[0], ends[1]
}

// FuzzReceiveRequest holds the receiver of requests to its contract: whatever
// comes, with however many descriptors, it never panics, takes no more than
// it says, and leaves no descriptor open when it refuses.
func FuzzReceiveRequest(f *testing.F) {
	frame := func(body string) []byte {
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
	}
	f.Add(frame(`{"Op":"poke"}`), uint8(0))
	f.Add(frame(`{"Op":"exec","Exec":{"Command":["true"],"Timeout":-1,"Null":[true,true,true,true]}}`), uint8(3))
	f.Add(frame(`{"Op":"snapshot","Kind":"memory","Deadline":1e99}`), uint8(1))
	f.Add(frame(`{"Op":"helper","Args":["kill","1"]}`), uint8(5))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, '{'}, uint8(9))
	f.Add([]byte{0, 0}, uint8(2))
	f.Fuzz(func(t *testing.T, data []byte, passed uint8) {
		if len(data) == 0 || len(data) > 64<<10 {
			return // what a socket takes at once
		}
		to, from := connected(t)
		null, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer null.Close()
		var rights []byte
		if passed > 0 {
			fds := make([]int, passed%64)
			for i := range fds {
				fds[i] = int(null.Fd())
			}
			rights = unix.UnixRights(fds...)
		}
		if _, _, err := to.WriteMsgUnix(data, rights, nil); err != nil {
			t.Fatal(err)
		}
		if err := to.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		_, files, err := receiveRequest(from)
		defer closeAll(files)
		if err != nil && len(files) > 0 || len(files) > maxPassed {
			t.Errorf("%d descriptors, %v", len(files), err)
		}
	})
}
