// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package ledger

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
)

// TestNothingAcknowledgedIsLostWhenProcessesAreKilled lets four processes
// append to the same few logs and kills them at random points, again and
// again: 500 times at full size. LEDGER_SEED repeats a run.
func TestNothingAcknowledgedIsLostWhenProcessesAreKilled(t *testing.T) {
	const processes, logs = 4, 6
	kills := 48
	if os.Getenv("SANDBOXER_TEST_FULL") != "" {
		kills = 500
	}
	seed := fromEnv(t, "LEDGER_SEED", int(time.Now().UnixNano()))
	t.Logf("LEDGER_SEED=%d, %d kills", seed, kills)
	random := rand.New(rand.NewPCG(uint64(seed), 0))

	l, _ := newLedger(t)
	var ids []string
	for range logs {
		ids = append(ids, sandbox.NewID(start))
	}
	acknowledged := map[string]string{} // "id sequence" to hash
	for done := 0; done < kills; done += processes {
		var children []*child
		for range processes {
			children = append(children, startAppender(t, l.Dir(), ids, random.Uint64()))
		}
		for _, c := range children {
			// The first acknowledgement says that it is at work.
			<-c.working
		}
		for _, c := range children {
			time.Sleep(time.Duration(random.Int64N(int64(6 * time.Millisecond))))
			if err := c.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range children {
			for key, hash := range <-c.acknowledged {
				acknowledged[key] = hash
			}
			_ = c.Wait() // it was killed
		}
		if r, err := l.Get(t.Context(), ids[random.IntN(logs)]); err != nil {
			t.Fatalf("%+v, %v", r, err)
		}
	}

	written := map[string]string{}
	for _, id := range ids {
		// Reading checks hashes, sequence and chain.
		events, err := l.Events(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			written[fmt.Sprintf("%s %d", id, e.Sequence)] = e.Hash
		}
	}
	for key, hash := range acknowledged {
		if written[key] != hash {
			t.Errorf("acknowledged %s %s, the log has %q", key, hash, written[key])
		}
	}
	_, unreadable, err := l.List(t.Context(), Filter{})
	if err != nil || len(unreadable) != 0 {
		t.Errorf("unreadable: %+v, %v", unreadable, err)
	}
	t.Logf("%d events acknowledged, %d written", len(acknowledged), len(written))
}

func fromEnv(t *testing.T, variable string, standard int) int {
	n, err := strconv.Atoi(cmp.Or(os.Getenv(variable), strconv.Itoa(standard)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// child is a process that appends until it is killed.
type child struct {
	*exec.Cmd
	working      chan struct{}
	acknowledged chan map[string]string
}

func startAppender(t *testing.T, dir string, ids []string, seed uint64) *child {
	t.Helper()
	c := &child{Cmd: helper(t, "appender", dir, strings.Join(ids, ","), strconv.FormatUint(seed, 10)), working: make(chan struct{}), acknowledged: make(chan map[string]string, 1)}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		acknowledged := map[string]string{}
		scanner := bufio.NewScanner(out)
		for scanner.Scan() {
			// A line that the kill has torn was not acknowledged.
			if f := strings.Fields(scanner.Text()); len(f) == 4 && f[3] == "." {
				acknowledged[f[0]+" "+f[1]] = f[2]
			}
			if len(acknowledged) == 1 {
				select {
				case <-c.working:
				default:
					close(c.working)
				}
			}
		}
		select {
		case <-c.working:
		default:
			close(c.working)
		}
		c.acknowledged <- acknowledged
	}()
	return c
}

// helper runs this test binary as a process that does one of the things below.
func helper(t *testing.T, arguments ...string) *exec.Cmd {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(program, "-test.run=^TestHelper$")
	c.Env = append(os.Environ(), "LEDGER_HELPER="+strings.Join(arguments, " "))
	c.Stderr = os.Stderr
	return c
}

// TestHelper is not a test: it is what the processes run that other tests
// start.
func TestHelper(*testing.T) {
	arguments := strings.Fields(os.Getenv("LEDGER_HELPER"))
	if len(arguments) == 0 {
		return
	}
	var err error
	switch arguments[0] {
	case "appender":
		err = appendForever(arguments[1], strings.Split(arguments[2], ","), arguments[3])
	case "limited":
		err = appendUpToALimit(arguments[1], arguments[2])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func appendForever(dir string, ids []string, seed string) error {
	source, err := strconv.ParseUint(seed, 10, 64)
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(source, 0))
	l := New(dir, clock.System{})
	for {
		id := ids[random.IntN(len(ids))]
		e := Event{Type: Extended, Message: strings.Repeat("m", random.IntN(maxMessage))}
		e, _, err := l.Append(context.Background(), id, always(e))
		if err != nil {
			return err
		}
		fmt.Printf("%s %d %s .\n", id, e.Sequence, e.Hash)
	}
}
