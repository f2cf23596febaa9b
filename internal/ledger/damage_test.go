// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
)

// A log with three events, and a bystander.
func damageable(t *testing.T) (l *Ledger, id, bystander string, content []byte) {
	t.Helper()
	l, _ = newLedger(t)
	id, bystander = sandbox.NewID(start), sandbox.NewID(start)
	mustAppend(t, l, bystander, Intended, Created)
	mustAppend(t, l, id, Intended, Created, Ready)
	content, err := os.ReadFile(l.logPath(id))
	if err != nil {
		t.Fatal(err)
	}
	return l, id, bystander, content
}

// lastLine returns where the last line begins.
func lastLine(content []byte) int {
	return bytes.LastIndexByte(content[:len(content)-1], '\n') + 1
}

func TestATornLastLineIsCutOffAtEveryByte(t *testing.T) {
	l, id, _, content := damageable(t)
	for size := lastLine(content); size < len(content); size++ {
		if err := os.WriteFile(l.logPath(id), content[:size], 0o600); err != nil {
			t.Fatal(err)
		}
		if r, err := l.Get(t.Context(), id); err != nil || r.Sequence != 2 {
			t.Fatalf("cut at %d of %d: reading gives %+v, %v", size, len(content), r, err)
		}
		if _, r, err := l.Append(t.Context(), id, always(Event{Type: Failed})); err != nil || r.Sequence != 3 || r.LastType != Failed {
			t.Fatalf("cut at %d of %d: appending gives %+v, %v", size, len(content), r, err)
		}
		if r, err := l.Get(t.Context(), id); err != nil || r.LastType != Failed {
			t.Fatalf("cut at %d of %d: reading again gives %+v, %v", size, len(content), r, err)
		}
	}
	if _, unreadable, err := l.List(t.Context(), Filter{}); err != nil || len(unreadable) != 0 {
		t.Errorf("a tear is not damage: %+v, %v", unreadable, err)
	}
}

// Readers take no lock. What they see of an append that cuts a torn line off
// and writes over it must never pass for damage.
func TestReadersDoNotMistakeARecoveryForDamage(t *testing.T) {
	l, id, _, content := damageable(t)
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			other := New(l.Dir(), l.clock)
			for {
				select {
				case <-stop:
					return
				default:
				}
				if r, err := other.Get(t.Context(), id); err != nil || r.Sequence < 2 {
					t.Errorf("sequence %d, %v", r.Sequence, err)
					return
				}
			}
		})
	}
	for round := range 100 {
		// What a writer leaves that is killed in the middle of its line.
		err := l.withLog(t.Context(), id, false, func(log *os.File) error {
			end := int64(lastLine(content))
			_, err := log.WriteAt(content[end:len(content)-1-round], end)
			return errors.Join(log.Truncate(int64(len(content)-1-round)), err)
		})
		if err != nil {
			t.Fatal(err)
		}
		message := strings.Repeat("m", round*17%maxMessage)
		if _, r, err := l.Append(t.Context(), id, always(Event{Type: Failed, Message: message})); err != nil || r.Sequence != 3 {
			t.Fatalf("sequence %d, %v", r.Sequence, err)
		}
	}
	close(stop)
	readers.Wait()
}

func TestATornFirstLineIsNoLog(t *testing.T) {
	l, id, _, content := damageable(t)
	first := bytes.IndexByte(content, '\n')
	for _, size := range []int{0, 1, first / 2, first} {
		if err := os.WriteFile(l.logPath(id), content[:size], 0o600); err != nil {
			t.Fatal(err)
		}
		if r, err := l.Get(t.Context(), id); err != nil || r.Known() {
			t.Errorf("cut at %d: %+v, %v", size, r, err)
		}
		if records, _, err := l.List(t.Context(), Filter{}); err != nil || len(records) != 1 {
			t.Errorf("cut at %d: %+v, %v", size, records, err)
		}
		if r := mustAppend(t, l, id, Intended); r.Sequence != 1 {
			t.Errorf("cut at %d: %+v", size, r)
		}
	}
}

// Every byte but the unacknowledged ones counts, the last newline included.
func TestADamagedByteAnywhereQuarantinesTheLogAndNoOther(t *testing.T) {
	l, id, bystander, content := damageable(t)
	for at := range content {
		damaged := bytes.Clone(content)
		damaged[at] ^= 0x11
		if err := os.WriteFile(l.logPath(id), damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		records, unreadable, err := l.List(t.Context(), Filter{})
		if err != nil || len(records) != 1 || records[0].ID != bystander {
			t.Fatalf("byte %d (%q): listed %+v, %v", at, content[at], records, err)
		}
		if len(unreadable) != 1 || unreadable[0].ID != id || !unreadable[0].Quarantined || unreadable[0].Reason == "" {
			t.Fatalf("byte %d (%q): unreadable %+v", at, content[at], unreadable)
		}
		if kept, err := os.ReadFile(unreadable[0].Path); err != nil || !bytes.Equal(kept, damaged) {
			t.Fatalf("byte %d: the quarantined log differs: %v", at, err)
		}
		reason := strings.TrimSuffix(unreadable[0].Path, logSuffix) + reasonSuffix
		if err := errors.Join(os.Remove(unreadable[0].Path), os.Remove(reason)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestABrokenLogIsNamedOnceToItsUserAndThenBegunAnew(t *testing.T) {
	line := func(e Event) string {
		encoded, err := encodeLine(e)
		if err != nil {
			t.Fatal(err)
		}
		return string(encoded)
	}
	for name, damage := range map[string]func(id, content string) string{
		"nonsense":           func(_, _ string) string { return "nonsense\n" },
		"empty line":         func(_, content string) string { return "\n" + content },
		"zeros":              func(_, content string) string { return content + "\x00\x00\x00\n" },
		"lines swapped":      func(_, content string) string { a, b, _ := strings.Cut(content, "\n"); return b + a + "\n" },
		"a line lost":        func(_, content string) string { _, rest, _ := strings.Cut(content, "\n"); return rest },
		"a line twice":       func(_, content string) string { return content + content[lastLine([]byte(content)):] },
		"another's line":     func(_, _ string) string { return line(Event{ID: sandbox.NewID(start), Sequence: 1, Type: Intended}) },
		"a chain cut":        func(id, content string) string { return content + line(Event{ID: id, Sequence: 4, Type: Lost}) },
		"a wrong sequence":   func(id, _ string) string { return line(Event{ID: id, Sequence: 7, Type: Lost}) },
		"newline turned tab": func(_, content string) string { return strings.TrimSuffix(content, "\n") + "\t" },
	} {
		t.Run(name, func(t *testing.T) {
			l, id, _, content := damageable(t)
			if err := os.WriteFile(l.logPath(id), []byte(damage(id, string(content))), 0o600); err != nil {
				t.Fatal(err)
			}
			decided := false
			_, _, err := l.Append(t.Context(), id, func(Record) (Event, error) { decided = true; return Event{Type: Claiming}, nil })
			var broken *BrokenError
			if !errors.As(err, &broken) || broken.ID != id || broken.NotMoved != nil || decided {
				t.Fatalf("got %v (decided: %v)", err, decided)
			}
			if r := mustAppend(t, l, id, Claiming); r.Sequence != 1 || r.Intended {
				t.Errorf("the new log has %+v", r)
			}
			records, unreadable, err := l.List(t.Context(), Filter{})
			if err != nil || len(records) != 2 || len(unreadable) != 1 || unreadable[0].Path != broken.Path || !strings.Contains(unreadable[0].Reason, broken.Reason) {
				t.Errorf("%+v, %+v, %v", records, unreadable, err)
			}
		})
	}
}

func TestASecondQuarantineOfOneIDKeepsTheFirst(t *testing.T) {
	l, id, _, _ := damageable(t)
	for _, content := range []string{"one\n", "two\n"} {
		if err := os.WriteFile(l.logPath(id), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Get(t.Context(), id); err == nil {
			t.Error("no error")
		}
	}
	_, unreadable, err := l.List(t.Context(), Filter{})
	if err != nil || len(unreadable) != 2 {
		t.Fatalf("%+v, %v", unreadable, err)
	}
	for i, want := range []string{"one\n", "two\n"} {
		if got, err := os.ReadFile(unreadable[i].Path); err != nil || string(got) != want {
			t.Errorf("%q, %v", got, err)
		}
	}
}

func TestANewerFormatIsRefusedAndLeftAlone(t *testing.T) {
	for name, body := range map[string]string{
		"same fields":  `{"v":2,"id":"ID","sequence":4}`,
		"other types":  `{"v":3,"id":{"a":1},"sequence":"four"}`,
		"other fields": `{"v":99}`,
	} {
		t.Run(name, func(t *testing.T) {
			l, id, bystander, content := damageable(t)
			changed := append(bytes.Clone(content), seal(strings.ReplaceAll(body, "ID", id))...)
			if err := os.WriteFile(l.logPath(id), changed, 0o600); err != nil {
				t.Fatal(err)
			}
			var newer *NewerError
			if _, err := l.Get(t.Context(), id); !errors.As(err, &newer) || newer.ID != id {
				t.Errorf("Get: %v", err)
			}
			if _, _, err := l.Append(t.Context(), id, always(Event{Type: Destroyed})); !errors.As(err, &newer) {
				t.Errorf("Append: %v", err)
			}
			records, unreadable, err := l.List(t.Context(), Filter{})
			if err != nil || len(records) != 1 || records[0].ID != bystander {
				t.Errorf("List: %+v, %v", records, err)
			}
			if len(unreadable) != 1 || unreadable[0].Quarantined || !errors.As(unreadable[0].Err, &newer) {
				t.Errorf("unreadable: %+v", unreadable)
			}
			if kept, err := os.ReadFile(l.logPath(id)); err != nil || !bytes.Equal(kept, changed) {
				t.Errorf("the log was touched: %v", err)
			}
		})
	}
}

func TestALogThatCannotBeReadIsReportedAndNotMoved(t *testing.T) {
	l, id, bystander, _ := damageable(t)
	if err := os.Remove(l.logPath(id)); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Base(l.logPath(id)), l.logPath(id)); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Get(t.Context(), id); err == nil {
		t.Error("a link to itself was read")
	}
	records, _, err := l.List(t.Context(), Filter{})
	if err != nil || len(records) != 1 || records[0].ID != bystander {
		t.Errorf("%+v, %v", records, err)
	}
}

func TestForeignFilesInTheLedgerAreIgnored(t *testing.T) {
	l, _, _, content := damageable(t)
	for _, name := range []string{"logs/README", "logs/a/x.jsonl", "logs/a/sbx-0000000000000000000b.jsonl", "logs/a/sbx-0000000000000000000a.jsonl.new", "logs/a/sbx-0000000000000000000a.jsonl/x"} {
		path := filepath.Join(l.Dir(), name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	records, unreadable, err := l.List(t.Context(), Filter{})
	if err != nil || len(records) != 2 || len(unreadable) != 0 {
		t.Errorf("%+v, %+v, %v", records, unreadable, err)
	}
}
