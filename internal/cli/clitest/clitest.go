// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package clitest runs the scripts of the command line: the same ones
// against a stub and against the embedded backend.
package clitest

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

const (
	settleTries = 300
	settlePause = 100 * time.Millisecond
)

// Params returns how the scripts of a directory run: each with a home of its
// own, which configure completes, and with these commands:
//
//	capture NAME           the last output becomes the variable NAME
//	field PATH VALUE       the last output is JSON that has the value there; a missing one is empty
//	count NUMBER           the last output is a JSON array of so many
//	code NUMBER COMMAND    the command ends with that exit code
//	settle NUMBER COMMAND  the command's JSON array comes to have so many elements
//	nowhere DIR TEXT       no file below the directory holds the text
func Params(dir string, configure func(*testscript.Env) error) testscript.Params {
	return testscript.Params{
		Dir:                 dir,
		RequireUniqueNames:  true,
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			for variable, sub := range map[string]string{
				"HOME": "home", "XDG_CONFIG_HOME": "config", "XDG_STATE_HOME": "state", "XDG_DATA_HOME": "data",
			} {
				env.Setenv(variable, filepath.Join(env.WorkDir, "."+sub))
			}
			env.Setenv("USER", "ada")
			if err := os.MkdirAll(filepath.Join(env.Getenv("XDG_CONFIG_HOME"), "sandboxer"), 0o700); err != nil {
				return err
			}
			return configure(env)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"capture": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile("stdout")))
			},
			"field": func(ts *testscript.TestScript, neg bool, args []string) {
				got, err := field(ts.ReadFile("stdout"), args[0])
				ts.Check(err)
				if (got == args[1]) == neg {
					ts.Fatalf("%s is %s, wanted %s", args[0], got, args[1])
				}
			},
			"count": func(ts *testscript.TestScript, _ bool, args []string) {
				var list []json.RawMessage
				ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &list))
				if strconv.Itoa(len(list)) != args[0] {
					ts.Fatalf("%d elements, wanted %s", len(list), args[0])
				}
			},
			"settle": func(ts *testscript.TestScript, _ bool, args []string) {
				var list []json.RawMessage
				for range settleTries {
					ts.Check(ts.Exec(args[1], args[2:]...))
					ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &list))
					if strconv.Itoa(len(list)) == args[0] {
						return
					}
					time.Sleep(settlePause)
				}
				ts.Fatalf("%d elements, wanted %s", len(list), args[0])
			},
			"nowhere": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(filepath.WalkDir(ts.MkAbs(args[0]), func(file string, entry fs.DirEntry, err error) error {
					if err != nil || !entry.Type().IsRegular() {
						return err
					}
					content, err := os.ReadFile(file)
					if err == nil && strings.Contains(string(content), args[1]) {
						return fmt.Errorf("%s holds %s", file, args[1])
					}
					return err
				}))
			},
			"code": func(ts *testscript.TestScript, _ bool, args []string) {
				err := ts.Exec(args[1], args[2:]...)
				got := 0
				if exit, is := err.(interface{ ExitCode() int }); is {
					got = exit.ExitCode()
				} else {
					ts.Check(err)
				}
				if strconv.Itoa(got) != args[0] {
					ts.Fatalf("exit code %d, wanted %s", got, args[0])
				}
			},
		},
	}
}

// field returns what stands at a path like "0.labels.suite".
func field(text, path string) (string, error) {
	var at any
	if err := json.Unmarshal([]byte(text), &at); err != nil {
		return "", fmt.Errorf("%w: %s", err, text)
	}
	for _, step := range strings.Split(path, ".") {
		switch here := at.(type) {
		case map[string]any:
			at = here[step]
		case []any:
			index, err := strconv.Atoi(step)
			if err != nil || index >= len(here) {
				return "", fmt.Errorf("no element %s: %s", step, text)
			}
			at = here[index]
		default:
			return "", fmt.Errorf("nothing at %s: %s", step, text)
		}
	}
	if at == nil {
		return "", nil
	}
	if s, is := at.(string); is {
		return s, nil
	}
	encoded, err := json.Marshal(at)
	return string(encoded), err
}
