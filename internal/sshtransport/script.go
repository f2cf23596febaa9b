// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sshtransport

import (
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// bootstrap is the command of every session. The server hands it to the
// user's login shell, whichever that is, so it is fixed text that each of
// them reads alike: sh, bash, ash, zsh, csh and tcsh, fish. There is no
// backslash, exclamation mark or single quote inside the quotes. What is to be
// done follows on stdin as a script with its length before it: a script has no
// limit that breaks the connection, and is in no list of processes.
//
// Nothing may follow the script before it says that it has begun: head reads
// ahead, and what follows is the command's stdin. A server that gives commands
// no process group of their own gets one made, because what is started is
// ended as a group. kill gets the group without "--" before it, and signals
// not by -s: busybox takes the one and dash the other for something else.
const bootstrap = `exec sh -c 'kill -0 -$$ 2>/dev/null && exec sh -c "$0"; exec setsid sh -c "$0"' ` +
	`'IFS= read -r n && s=$(head -c "$n") && eval "$s"'`

// maxScript bounds a script, in bytes.
const maxScript = 1 << 20

// script is what one session does.
type script struct {
	token string // the line with it tells where the script's own output begins
	text  string
}

// newScript returns the script with the given lines. Before them it says that
// it has begun, and as which process: a login shell may write to both outputs
// before.
func newScript(lines ...string) (script, error) {
	token := "sandboxer-" + rand.Text()
	begin := `printf "%s %s\n" ` + token + ` "$$"`
	text := strings.Join(append([]string{begin, begin + " >&2"}, lines...), "\n")
	if len(text) > maxScript {
		return script{}, sdk.Invalid("command", "the command and its environment are longer than %d KiB", maxScript>>10)
	}
	return script{token, text}, nil
}

// frame returns the script as the bootstrap reads it.
func (s script) frame() string { return fmt.Sprintf("%d\n%s", len(s.text), s.text) }

// lines returns the shell's lines before a command: its directory and its
// environment, which is exported instead of passed as arguments of env,
// because arguments are for everyone on the host to see.
func prelude(dir string, env map[string]string) ([]string, error) {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if !validVariable(name) {
			return nil, sdk.Invalid("env", "%q is not the name of an environment variable", clip(name))
		}
		value, err := quote(env[name])
		if err != nil {
			return nil, sdk.Invalid("env."+name, "%s", err)
		}
		lines = append(lines, "export "+name+"="+value)
	}
	if dir != "" {
		quoted, err := quote(dir)
		if err != nil {
			return nil, sdk.Invalid("workdir", "%s", err)
		}
		lines = append(lines, "cd -- "+quoted+" || exit 126")
	}
	return lines, nil
}

// guard ends everything that the script has started when stdin ends: the
// caller gave up, was killed, or the connection is gone. sshd alone would let
// the command run on. The guard is a member of the group that it ends, so the
// group's number can't be another's by then.
const guard = `exec 3<&0 </dev/null
(while IFS= read -r x; do :; done <&3; kill -KILL "-$$") >/dev/null 2>&1 &
g=$!
exec 3<&-`

// guarded runs a command whose stdin is empty.
func guarded(command string) []string {
	return []string{guard, command, "c=$?", `kill -KILL "$g" 2>/dev/null`, `exit "$c"`}
}

// awaited runs a command with the rest of stdin, once it is told to.
func awaited(command string) []string {
	return []string{`IFS= read -r x && [ "$x" = go ] || exit 125`, "exec " + command}
}

// watch ends the process group of another session when stdin ends without a
// word: what guard does, for a command that has its stdin to itself.
func watch(pid int) []string {
	return []string{fmt.Sprintf(`IFS= read -r x && [ "$x" = done ] || kill -KILL -%d`, pid)}
}

// quoteAll returns a command as one line of a POSIX shell.
func quoteAll(command []string) (string, error) {
	if len(command) == 0 || command[0] == "" {
		return "", sdk.Invalid("command", "it is empty")
	}
	words := make([]string, len(command))
	for i, word := range command {
		quoted, err := quote(word)
		if err != nil {
			return "", sdk.Invalid(fmt.Sprintf("command[%d]", i), "%s", err)
		}
		words[i] = quoted
	}
	return strings.Join(words, " "), nil
}

// quote returns a word that a POSIX shell reads as exactly this text.
func quote(word string) (string, error) {
	if strings.IndexByte(word, 0) >= 0 {
		return "", errors.New("a NUL byte can't be passed on")
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'", nil
}

// validVariable tells whether an environment variable may be called so.
func validVariable(name string) bool {
	letter := func(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_' }
	return name != "" && letter(name[0]) && allOf(name, func(c byte) bool { return letter(c) || '0' <= c && c <= '9' })
}
