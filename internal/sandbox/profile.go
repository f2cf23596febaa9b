// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sandbox

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// The bounds of a profile document. They keep a hostile document from
// costing more than its size.
const (
	maxText    = 4 << 10
	maxEntries = 256
	// MaxFileBytes bounds the contents of all files of a profile together.
	MaxFileBytes = 4 << 20
)

var (
	namePattern    = pattern(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
	envPattern     = pattern(`^[A-Za-z_][A-Za-z0-9_]*$`)
	portPattern    = pattern(`^[a-z][a-z0-9_-]{0,31}$`)
	modePattern    = pattern(`^0?[0-7]{3,4}$`)
	userPattern    = pattern(`^[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?$`)
	runtimePattern = pattern(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)
	labelPattern   = pattern(`^[A-Za-z0-9]([A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?$`)
)

// pattern compiles an expression when it is first used: most runs use few.
func pattern(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}

// Problem is one fault of a document, on one attribute.
type Problem struct {
	Path    string // as in the document: "limits.memory", "setup[0]"
	Message string
}

// Error returns path and message.
func (p Problem) Error() string { return p.Path + ": " + p.Message }

// problems collects faults, so that all are reported at once.
type problems []Problem

func (p *problems) add(path, format string, args ...any) {
	*p = append(*p, Problem{Path: path, Message: fmt.Sprintf(format, args...)})
}

// ValidateProfile returns every fault of a profile, sorted by path; none
// means that it is valid. It looks at nothing but the value.
func ValidateProfile(p sdk.Profile) []Problem {
	var found problems
	if !namePattern().MatchString(p.Name) {
		found.add("name", "%q is not a profile name (1 to 63 letters, digits, dots, dashes and underscores, beginning and ending with a letter or digit)", clip(p.Name))
	}
	if len(p.Description) > maxText {
		found.add("description", "longer than %d bytes", maxText)
	}
	validateSource(&found, p)
	validateProcess(&found, p)
	validateFiles(&found, p)
	validatePorts(&found, p)
	validateLimits(&found, p.Limits)
	validateNetwork(&found, p.Network)
	validateReady(&found, p.Ready)
	validateTTL(&found, p.TTL)
	switch p.OnExpiry {
	case "", sdk.OnExpiryDestroy, sdk.OnExpirySnapshot, sdk.OnExpiryPause:
	default:
		found.add("on_expiry", "%q is not one of destroy, snapshot, pause", clip(string(p.OnExpiry)))
	}
	checkDuration(&found, "idle_timeout", p.IdleTimeout)
	checkDuration(&found, "expiry_snapshot_ttl", p.ExpirySnapshotTTL)
	checkDuration(&found, "paused_ttl", p.PausedTTL)
	for at, dollars := range map[string]float64{"max_cost_per_hour": p.MaxCostPerHour, "max_committed": p.MaxCommitted} {
		if _, err := MoneyOf(dollars); err != nil {
			found.add(at, "%s", err)
		}
	}
	for feature, class := range p.Requires {
		at := "requires." + clip(string(feature))
		if !slices.Contains(sdk.Features(), feature) {
			found.add(at, "%s", UnknownFeature(string(feature)))
		}
		if !class.Valid() || class == sdk.ClassUnsupported {
			found.add(at, "%q is not one of enforced, best_effort, emulated, unverifiable", clip(string(class)))
		}
	}
	found = append(found, ValidateLabels("labels", p.Labels)...)
	slices.SortStableFunc(found, func(a, b Problem) int { return strings.Compare(a.Path, b.Path) })
	return found
}

// UnknownFeature says that there is no feature of a name, and which there are.
func UnknownFeature(name string) string {
	var known []string
	for _, feature := range sdk.Features() {
		known = append(known, string(feature))
	}
	return "no such feature" + DidYouMean(name, known) + "; `sandboxer extension describe local` lists the features"
}

// ValidateLabels returns the faults of user labels.
func ValidateLabels(at string, labels map[string]string) []Problem {
	var found problems
	if len(labels) > maxEntries {
		found.add(at, "more than %d labels", maxEntries)
		return found
	}
	for key, value := range labels {
		switch {
		case !labelPattern().MatchString(key):
			found.add(at+"."+clip(key), "not a label key (letters, digits, dots, dashes, underscores, slashes)")
		case strings.HasPrefix(key, sdk.LabelPrefix):
			found.add(at+"."+clip(key), "the prefix %s is reserved", sdk.LabelPrefix)
		case len(value) > maxText || !printable(value):
			found.add(at+"."+clip(key), "the value is longer than %d bytes or not printable", maxText)
		}
	}
	return found
}

func validateSource(found *problems, p sdk.Profile) {
	var sources []string
	if p.Image != "" {
		sources = append(sources, "image")
		if len(p.Image) > maxText || !printable(p.Image) {
			found.add("image", "longer than %d bytes or not printable", maxText)
		}
	}
	if p.Build != nil {
		sources = append(sources, "build")
		if p.Build.Context == "" {
			found.add("build.context", "is required")
		}
	}
	if p.Compose != nil {
		sources = append(sources, "compose")
		if len(p.Compose.Files) == 0 {
			found.add("compose.files", "at least one file is required")
		}
	}
	if p.Machine != nil {
		sources = append(sources, "machine")
		if p.Machine.Image == "" {
			found.add("machine.image", "is required")
		}
	}
	if p.Template != "" {
		sources = append(sources, "template")
	}
	if len(sources) > 1 {
		found.add(sources[1], "a profile is made from one thing: %s are set", strings.Join(sources, " and "))
	}
	if p.Runtime != "" && !runtimePattern().MatchString(p.Runtime) {
		found.add("runtime", "%q is not a runtime name", clip(p.Runtime))
	}
}

func validateProcess(found *problems, p sdk.Profile) {
	validateCommand(found, "command", p.Command, true)
	if p.Workdir != "" && !cleanPath(p.Workdir) {
		found.add("workdir", "%q is not a clean absolute path", clip(p.Workdir))
	}
	if p.User != "" && !userPattern().MatchString(p.User) {
		found.add("user", "%q is not a user (name, uid or uid:gid)", clip(p.User))
	}
	*found = append(*found, ValidateEnv("env", p.Env)...)
	if len(p.Setup) > maxEntries {
		found.add("setup", "more than %d steps", maxEntries)
		return
	}
	for i, step := range p.Setup {
		validateCommand(found, fmt.Sprintf("setup[%d]", i), step, false)
	}
}

// ValidateEnv returns the faults of a map of environment variables (or of
// secrets, whose names follow the same rule).
func ValidateEnv(at string, env map[string]string) []Problem {
	var found problems
	if len(env) > maxEntries {
		found.add(at, "more than %d variables", maxEntries)
		return found
	}
	for name, value := range env {
		// The value never goes into the message: it may be a secret.
		switch {
		case !envPattern().MatchString(name) || len(name) > 128:
			found.add(at+"."+clip(name), "not a variable name (letters, digits, underscores, not beginning with a digit)")
		case strings.ContainsRune(value, 0) || len(value) > 64<<10:
			found.add(at+"."+name, "the value holds a NUL or is longer than 64 KiB")
		}
	}
	return found
}

func validateCommand(found *problems, at string, command []string, empty bool) {
	if len(command) == 0 {
		if !empty {
			found.add(at, "an empty command")
		}
		return
	}
	if command[0] == "" {
		found.add(at+"[0]", "the program is empty")
	}
	if len(command) > 4*maxEntries {
		found.add(at, "more than %d words", 4*maxEntries)
		return
	}
	for i, word := range command {
		if strings.ContainsRune(word, 0) || len(word) > 64<<10 {
			found.add(fmt.Sprintf("%s[%d]", at, i), "holds a NUL or is longer than 64 KiB")
		}
	}
}

func validateFiles(found *problems, p sdk.Profile) {
	total := 0
	for _, name := range slices.Sorted(maps.Keys(p.Files)) {
		file := p.Files[name]
		at := "files." + clip(name)
		if !cleanPath(name) || name == "/" {
			found.add(at, "not a clean absolute path of a file")
		}
		if file.Mode != "" && !modePattern().MatchString(file.Mode) {
			found.add(at+".mode", "%q is not an octal mode", clip(file.Mode))
		}
		total += len(file.Content)
	}
	if total > MaxFileBytes {
		found.add("files", "together larger than %d MiB", MaxFileBytes>>20)
	}
	if len(p.Files) > maxEntries {
		found.add("files", "more than %d files", maxEntries)
	}
}

func validatePorts(found *problems, p sdk.Profile) {
	seen := map[int]string{}
	for _, name := range slices.Sorted(maps.Keys(p.Ports)) {
		port := p.Ports[name]
		at := "ports." + clip(name)
		if !portPattern().MatchString(name) {
			found.add(at, "not a port name (lower case letter, then letters, digits, dashes, underscores; at most 32)")
		}
		if port < 1 || port > 65535 {
			found.add(at, "%d is not a port", port)
		}
		if other, twice := seen[port]; twice {
			found.add(at, "port %d is already named %s", port, other)
		}
		seen[port] = name
	}
	switch p.Publish {
	case "", "loopback", "host":
	default:
		found.add("publish", "%q is not one of loopback, host", clip(p.Publish))
	}
}

func validateLimits(found *problems, l *sdk.Limits) {
	if l == nil {
		return
	}
	if l.CPUs < 0 || l.CPUs > 4096 || (l.CPUs != 0 && l.CPUs < 0.01) {
		found.add("limits.cpus", "%v is not between 0.01 and 4096", l.CPUs)
	}
	if l.Pids < 0 || l.Pids > 4<<20 {
		found.add("limits.pids", "%d is not between 1 and %d", l.Pids, 4<<20)
	}
	for at, size := range map[string]string{"limits.memory": l.Memory, "limits.disk": l.Disk} {
		if size == "" {
			continue
		}
		if _, err := sdk.ParseSize(size); err != nil {
			found.add(at, "%s", err)
		}
	}
	checkDuration(found, "limits.wall", l.Wall)
}

func validateNetwork(found *problems, n *sdk.Network) {
	if n == nil {
		return
	}
	switch n.Egress {
	case "", sdk.EgressNone, sdk.EgressOpen, sdk.EgressDeny:
	default:
		found.add("network.egress", "%q is not one of deny, open, none", clip(n.Egress))
	}
	if len(n.Allow) > 0 && n.Egress != sdk.EgressDeny {
		found.add("network.allow", "an allow-list needs egress = \"deny\"")
	}
	if len(n.Allow) > maxEntries {
		found.add("network.allow", "more than %d entries", maxEntries)
		return
	}
	for i, entry := range n.Allow {
		if _, err := sdk.ParseAllow(entry); err != nil {
			found.add(fmt.Sprintf("network.allow[%d]", i), "%s", err)
		}
	}
}

func validateReady(found *problems, r *sdk.Ready) {
	if r == nil {
		return
	}
	checks := 0
	if r.HTTP != nil {
		checks++
		checkPort(found, "ready.http.port", r.HTTP.Port)
		if r.HTTP.Path != "" && !strings.HasPrefix(r.HTTP.Path, "/") {
			found.add("ready.http.path", "%q does not begin with a slash", clip(r.HTTP.Path))
		}
	}
	if r.TCP != nil {
		checks++
		checkPort(found, "ready.tcp.port", r.TCP.Port)
	}
	if len(r.Exec) > 0 {
		checks++
		validateCommand(found, "ready.exec", r.Exec, false)
	}
	if r.Log != "" {
		checks++
		if _, err := regexp.Compile(r.Log); err != nil || len(r.Log) > maxText {
			found.add("ready.log", "%q is not a regular expression", clip(r.Log))
		}
	}
	if checks != 1 {
		found.add("ready", "exactly one of http, tcp, exec, log is wanted, %d are set", checks)
	}
	checkDuration(found, "ready.timeout", r.Timeout)
}

func validateTTL(found *problems, t *sdk.TTL) {
	if t == nil {
		return
	}
	standard := checkDuration(found, "ttl.default", t.Default)
	most := checkDuration(found, "ttl.max", t.Max)
	if standard > 0 && most > 0 && standard > most {
		found.add("ttl.default", "%s is longer than ttl.max = %s", t.Default, t.Max)
	}
	if len(t.Exempt) > maxText {
		found.add("ttl.exempt", "longer than %d bytes", maxText)
	}
}

// checkDuration returns the nanoseconds of a duration, or 0 when it is empty
// or faulty.
func checkDuration(found *problems, at, value string) int64 {
	if value == "" {
		return 0
	}
	d, err := ParseDuration(value)
	if err != nil {
		found.add(at, "%s", err)
		return 0
	}
	return int64(d)
}

func checkPort(found *problems, at string, port int) {
	if port < 1 || port > 65535 {
		found.add(at, "%d is not a port", port)
	}
}

func cleanPath(p string) bool {
	return len(p) <= maxText && path.IsAbs(p) && path.Clean(p) == p && printable(p)
}

func printable(s string) bool {
	for _, r := range s {
		if r == 0xFFFD || r < 0x20 || r == 0x7F {
			return false
		}
	}
	return true
}
