// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package dockeracc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker/dockertest"
	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/repo"
)

// user drives the command line as a person does, with both backends.
type user struct {
	dir, program string
	env          []string
}

func newUser(t *testing.T, engine *dockertest.Engine) user {
	t.Helper()
	root, err := repo.Root()
	if err != nil {
		t.Fatal(err)
	}
	u := user{dir: t.TempDir(), program: filepath.Join(root, "bin", "sandboxer")}
	u.env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + u.dir, "XDG_CONFIG_HOME=" + u.dir, "XDG_STATE_HOME=" + filepath.Join(u.dir, "state")}
	image, err := dockertest.BusyboxRoot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"root.tar": string(image),
		"app.yaml": "name: app\nimage: ./root.tar\nuser: app\nworkdir: /srv\nenv:\n  MODE: test\nlabels:\n  suite: checkout\n",
		"sandboxer/sandboxer.hcl": fmt.Sprintf("fleet = \"travel\"\nbackends = {\n  engine = { docker = { host = %q, reaper = \"external\" } }\n  here = { local = { state_dir = %q } }\n}\n",
			engine.Host, filepath.Join(u.dir, "local")),
	} {
		path := filepath.Join(u.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, backend := range []string{"engine", "here"} {
			u.run(t, "destroy", "--all", "--backend", backend)
		}
	})
	return u
}

func (u user) run(t *testing.T, args ...string) string {
	t.Helper()
	out, errs, err := u.try(t, args...)
	if err != nil {
		t.Fatalf("%q: %v\n%s%s", args, err, out, errs)
	}
	return out
}

func (u user) try(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.Command(u.program, args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = u.dir, u.env, &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

func (u user) id(t *testing.T, args ...string) string {
	t.Helper()
	return strings.TrimSpace(u.run(t, append(args, "-q")...))
}

// A sandbox goes on elsewhere: from an engine to gVisor on this machine, and
// the other way round, with its files, its profile and its labels, and with a
// report of what it lost.
func TestDockerSnapshotsTravel(t *testing.T) {
	engine := dockertest.Start(t)
	u := newUser(t, engine)
	for _, way := range [][2]string{{"engine", "here"}, {"here", "engine"}} {
		t.Run(way[0]+" to "+way[1], func(t *testing.T) {
			source := u.id(t, "create", "--profile", "./app.yaml", "--backend", way[0], "--env", "OWN=variable-canary-81")
			u.run(t, "exec", source, "--", "sh", "-c", "echo travelled > file; mkdir -m 0700 dir; ln -s file link; ln file linked; mkfifo pipe; echo ä > ä; rm -f /srv/nothing")
			snapshot := u.id(t, "snapshot", "create", source)
			var exported, imported struct {
				ID        string `json:"id"`
				SandboxID string `json:"sandbox_id"`
				Backend   string `json:"backend"`
				Profile   string `json:"profile"`
				Labels    map[string]string
				Losses    []struct{ Kind, Detail string }
			}
			decode(t, u.run(t, "snapshot", "export", snapshot, "travel.tar", "--json"), &exported)
			table, notes, err := u.try(t, "snapshot", "export", snapshot, "-")
			if err != nil || !strings.Contains(notes, "not carried:") || !strings.Contains(notes, "memory:") {
				t.Errorf("to stdout: %d bytes, %v\n%s", len(table), err, notes)
			}
			decode(t, u.run(t, "snapshot", "import", "travel.tar", "--backend", way[1], "--json"), &imported)
			if imported.SandboxID != source || imported.Backend != way[1] || imported.Profile != "app" || imported.Labels["suite"] != "checkout" {
				t.Errorf("imported: %+v", imported)
			}
			for _, kind := range []string{"memory", "secrets", "environment", "sockets"} {
				for of, losses := range map[string][]struct{ Kind, Detail string }{"export": exported.Losses, "import": imported.Losses} {
					if !slices.ContainsFunc(losses, func(l struct{ Kind, Detail string }) bool { return l.Kind == kind && l.Detail != "" }) {
						t.Errorf("the %s has no word about %s", of, kind)
					}
				}
			}
			// Restore, and fork.
			for range 2 {
				fork := u.id(t, "restore", imported.ID, "--ttl", "10m")
				out := u.run(t, "exec", fork, "--", "sh", "-c", "cat file link ä; id -un; pwd; stat -c %a:%U dir; stat -c %h linked; stat -c %F pipe; echo $MODE-$OWN-$SANDBOXER_ID")
				if want := "travelled\ntravelled\nä\napp\n/srv\n700:app\n2\nfifo\ntest--"; !strings.HasPrefix(out, want) {
					t.Errorf("there it is %q, want %q", out, want)
				}
				u.run(t, "exec", fork, "--", "sh", "-c", "echo changed > file")
			}
			// The archive is an image like any other, on both.
			if err := os.WriteFile(filepath.Join(u.dir, "again.yaml"), []byte("name: again\nimage: ./travel.tar\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, backend := range way {
				plain := u.id(t, "create", "--profile", "./again.yaml", "--backend", backend)
				if out := u.run(t, "exec", plain, "--", "cat", "/srv/file"); out != "travelled\n" {
					t.Errorf("as an image on %s: %q", backend, out)
				}
			}
			content, err := os.ReadFile(filepath.Join(u.dir, "travel.tar"))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(u.dir, "cut.tar"), content[:len(content)/2], 0o600); err != nil {
				t.Fatal(err)
			}
			if _, errs, err := u.try(t, "snapshot", "import", "cut.tar", "--backend", way[1]); err == nil || !strings.Contains(errs, "archive") {
				t.Errorf("half an archive: %v\n%s", err, errs)
			}
			u.run(t, "destroy", "--all")
			u.run(t, "snapshot", "delete", snapshot, imported.ID)
			if out := u.run(t, "snapshot", "list", "--json"); strings.TrimSpace(out) != "[]" {
				t.Errorf("left: %s", out)
			}
		})
	}
	if strays, err := filepath.Glob(filepath.Join(u.dir, ".travel.tar*")); err != nil || len(strays) > 0 {
		t.Errorf("left beside the archive: %q, %v", strays, err)
	}
}

func decode(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}
