// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux && (amd64 || arm64)

package initproc_test

// Init and courier are ordinary Linux programs, so their rules are tested
// natively: in namespaces of their own, where they are root.

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/initproc"
)

func TestProgramsAreOnePage(t *testing.T) {
	for name, size := range map[string]int{"init": len(initproc.Init()), "courier": len(initproc.Courier())} {
		if size > 4096 {
			t.Errorf("the %s has %d bytes", name, size)
		}
	}
}

const insideEnv = "SANDBOXER_TEST_INSIDE"

func TestMain(m *testing.M) {
	if os.Getenv(insideEnv) != "" {
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
	}
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func executable(t *testing.T, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, content, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// inits are started one at a time: a network namespace has one address.
func startInit(t *testing.T, main *initproc.Request) (cmd *exec.Cmd, output, reports *os.File, steps initproc.Steps, open func()) {
	t.Helper()
	cmd = exec.Command(executable(t, "init", initproc.Init()))
	gate, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, outputWrite := pipe(t)
	reports, reportsWrite := pipe(t)
	cmd.Stdout, cmd.Stderr = outputWrite, reportsWrite
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	outputWrite.Close()
	reportsWrite.Close()
	if report := readReport(t, reports, nil); report.Kind != initproc.Listening {
		t.Fatalf("the init's first report is %+v", report)
	}
	if main != nil {
		var encoded []byte
		if encoded, steps, err = main.Encode(); err != nil {
			t.Fatal(err)
		}
		if _, err := gate.Write(encoded); err != nil {
			t.Fatal(err)
		}
	}
	return cmd, output, reports, steps, func() { gate.Close() }
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	_ = r.SetReadDeadline(time.Now().Add(20 * time.Second))
	return r, w
}

func readReport(t *testing.T, from io.Reader, steps initproc.Steps) initproc.Report {
	t.Helper()
	data := make([]byte, initproc.ReportSize)
	if _, err := io.ReadFull(from, data); err != nil {
		t.Fatalf("report: %v", err)
	}
	report, err := initproc.DecodeReport(data, steps)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

var env = []string{"PATH=/nowhere:/usr/bin:/bin", "GREETING=hello"}

func TestMainProcess(t *testing.T) {
	dir := t.TempDir()
	for name, test := range map[string]struct {
		request initproc.Request
		output  string
		end     initproc.Report
	}{
		"is looked for in PATH and gets arguments and environment": {
			request: initproc.Request{Args: []string{"sh", "-c", "echo $0 $# $GREETING; echo error >&2; pwd; exit 3", "a", "b"}, Workdir: "/usr"},
			output:  "a 1 hello\nerror\n/usr\n", end: initproc.Report{Kind: initproc.Ended, Status: 3 << 8},
		},
		"makes its working directory": {
			request: initproc.Request{Args: []string{"/bin/pwd"}, Workdir: dir + "/a/b", MakeWorkdir: true},
			output:  dir + "/a/b\n", end: initproc.Report{Kind: initproc.Ended},
		},
		"ends by a signal": {
			request: initproc.Request{Args: []string{"sh", "-c", "kill -9 $$"}, Workdir: "/"},
			end:     initproc.Report{Kind: initproc.Ended, Status: 9},
		},
		"is not there": {
			request: initproc.Request{Args: []string{"nowhere"}, Workdir: "/"},
			end:     initproc.Report{Kind: initproc.Failed, Errno: unix.ENOENT, Step: "command"},
		},
		"is no program": {
			request: initproc.Request{Args: []string{"/etc/passwd"}, Workdir: "/"},
			end:     initproc.Report{Kind: initproc.Failed, Errno: unix.EACCES, Step: "command"},
		},
		"has no working directory": {
			request: initproc.Request{Args: []string{"true"}, Workdir: "/nowhere"},
			end:     initproc.Report{Kind: initproc.Failed, Errno: unix.ENOENT, Step: "workdir"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			test.request.Main, test.request.Env = true, env
			cmd, output, reports, steps, open := startInit(t, &test.request)
			_ = output.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
			if n, err := output.Read(make([]byte, 1)); n != 0 || !os.IsTimeout(err) {
				t.Fatalf("before the gate opened: read %d bytes, %v; want a timeout", n, err)
			}
			_ = output.SetReadDeadline(time.Now().Add(20 * time.Second))
			open()
			report := readReport(t, reports, steps)
			if report.Kind == initproc.Started {
				report = readReport(t, reports, steps)
			}
			if report != test.end {
				t.Errorf("report %+v, want %+v", report, test.end)
			}
			got := make([]byte, len(test.output))
			if _, err := io.ReadFull(output, got); err != nil || string(got) != test.output {
				t.Errorf("output %q, %v; want %q", got, err, test.output)
			}
			if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
				t.Errorf("the init is gone after its command: %v", err)
			}
		})
	}
}

// deliver runs a request through a courier and returns the last report.
func deliver(t *testing.T, courier string, request initproc.Request, stdin io.Reader) (stdout, stderr string, last initproc.Report) {
	t.Helper()
	encoded, steps, err := request.Encode()
	if err != nil {
		t.Fatal(err)
	}
	path := executable(t, "request", encoded)
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	reports, reportsWrite := pipe(t)
	cmd := exec.Command(courier)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &errs
	cmd.ExtraFiles = []*os.File{file, reportsWrite}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	reportsWrite.Close()
	timer := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
	if err := cmd.Wait(); err != nil {
		t.Fatalf("courier: %v", err)
	}
	timer.Stop()
	for {
		data := make([]byte, initproc.ReportSize)
		if _, err := io.ReadFull(reports, data); err != nil {
			return out.String(), errs.String(), last
		}
		if last, err = initproc.DecodeReport(data, steps); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRequests(t *testing.T) {
	courier := executable(t, "courier", initproc.Courier())
	cmd, _, _, _, open := startInit(t, nil)
	open()
	long := strings.Repeat("0123456789abcdef", 1<<16) // 1 MiB
	for name, test := range map[string]struct {
		script         string
		stdin          string
		stdout, stderr string
		code           int
	}{
		"streams are apart": {script: "echo out; echo err >&2; exit 7", stdout: "out\n", stderr: "err\n", code: 7},
		"input ends":        {script: "cat; cat >&2", stdin: "all of it", stdout: "all of it"},
		"much both ways":    {script: "tee /dev/stderr", stdin: long, stdout: long, stderr: long},
		"input is not read": {script: "echo done", stdin: long, stdout: "done\n"},
		"closed output":     {script: "exec >&-; sleep 0.1; exit 5", code: 5},
		"left behind":       {script: "sleep 5 & echo gone", stdout: "gone\n"},
		"a signal":          {script: "kill -15 $$", code: 143},
		"late output":       {script: "sleep 0.2; printf x; sleep 0.1; printf y", stdout: "xy"},
	} {
		t.Run(name, func(t *testing.T) {
			request := initproc.Request{Args: []string{"sh", "-c", test.script}, Env: env, Workdir: "/"}
			stdout, stderr, last := deliver(t, courier, request, strings.NewReader(test.stdin))
			if last.Kind != initproc.Ended || last.ExitCode() != test.code {
				t.Errorf("ended as %+v, want exit code %d", last, test.code)
			}
			if stdout != test.stdout || stderr != test.stderr {
				t.Errorf("%d and %d bytes of output, want %d and %d", len(stdout), len(stderr), len(test.stdout), len(test.stderr))
			}
		})
	}
	t.Run("null devices", func(t *testing.T) {
		request := initproc.Request{Args: []string{"sh", "-c", "for i in 0 1 2; do test -c /proc/$$/fd/$i && echo null >&2; done; ls /proc/self/fd >&2"},
			Env: env, Workdir: "/", Null: [3]bool{true, true, false}}
		_, stderr, last := deliver(t, courier, request, nil)
		// The fourth is the directory that ls reads.
		if want := "null\nnull\n0\n1\n2\n3\n"; stderr != want || last.Kind != initproc.Ended {
			t.Errorf("%q, %+v, want %q", stderr, last, want)
		}
	})
	t.Run("no such command", func(t *testing.T) {
		_, _, last := deliver(t, courier, initproc.Request{Args: []string{"nowhere"}, Env: env, Workdir: "/"}, nil)
		if want := (initproc.Report{Kind: initproc.Failed, Errno: unix.ENOENT, Step: "command"}); last != want {
			t.Errorf("%+v, want %+v", last, want)
		}
	})
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	t.Run("no init", func(t *testing.T) {
		// The socket is gone with the last shepherd that ends.
		var last initproc.Report
		for range 100 {
			if _, _, last = deliver(t, courier, initproc.Request{Args: []string{"true"}, Env: env, Workdir: "/"}, nil); last.Kind == initproc.Undelivered {
				break
			}
		}
		if want := (initproc.Report{Kind: initproc.Undelivered, Errno: unix.ECONNREFUSED}); last != want {
			t.Errorf("%+v, want %+v", last, want)
		}
	})
}

// FuzzDecodeReport makes sure that nothing a sandbox says is taken for more
// than it is.
func FuzzDecodeReport(f *testing.F) {
	_, steps, err := initproc.Request{Args: []string{"true"}, Workdir: "/"}.Encode()
	if err != nil {
		f.Fatal(err)
	}
	for kind := range byte(8) {
		f.Add([]byte{kind, 0, 0, 0, 2, 0, 0, 0, 80, 0, 0, 0, 0, 0, 0, 0})
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := initproc.DecodeReport(data, steps)
		if err != nil {
			return
		}
		if r.Kind == initproc.Started && r.PID <= 1 {
			t.Errorf("process %d", r.PID)
		}
		if r.Kind == initproc.Ended && (r.ExitCode() < 0 || r.ExitCode() > 255) {
			t.Errorf("exit code %d", r.ExitCode())
		}
	})
}
