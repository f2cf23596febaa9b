// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package isolation

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// mounted is one line of the table of mounts.
type mounted struct {
	target string
	kind   string // of the filesystem
	open   bool   // it may be written
}

// mountTable reads the table of mounts of this process.
func mountTable() ([]mounted, error) {
	content, err := read("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	if len(content) == maxRead {
		return nil, errors.New("the table of mounts is too large")
	}
	var table []mounted
	for line := range strings.Lines(string(content)) {
		// ID PARENT MAJOR:MINOR ROOT TARGET OPTIONS [FIELDS] - KIND SOURCE OPTIONS
		before, after, found := strings.Cut(strings.TrimSpace(line), " - ")
		fields, rest := strings.Fields(before), strings.Fields(after)
		if !found || len(fields) < 6 || len(rest) < 1 {
			return nil, errors.New("the table of mounts has a line that is none")
		}
		table = append(table, mounted{target: unescape(fields[4]), kind: rest[0], open: slices.Contains(strings.Split(fields[5], ","), "rw")})
	}
	return table, nil
}

// unescape undoes the kernel's octal escapes.
func unescape(text string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(text)
}

// containerMounts are in every container, and each holds nothing of the host
// that is not made for it.
var containerMounts = []string{
	"/", "/proc", "/sys", "/dev", "/dev/pts", "/dev/shm", "/dev/mqueue", "/dev/console", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf",
}

// kernelKinds are filesystems that are no place where anybody keeps files.
var kernelKinds = []string{"proc", "sysfs", "tmpfs", "cgroup", "cgroup2", "devtmpfs", "devpts", "mqueue", "securityfs", "bpf", "overlay"}

// mounts looks for anything that is mounted and belongs neither to every
// container nor to what the backend says that it mounts.
func (l *look) mounts() {
	table, err := mountTable()
	if err != nil {
		l.Unknown(sdk.CheckMounts, "the table of mounts can't be read: "+why(err))
		return
	}
	for _, m := range table {
		kernel := within(m.target, "/proc") || within(m.target, "/sys")
		switch {
		case slices.Contains(l.expect.Mounts, m.target), slices.Contains(containerMounts, m.target) && !kernel, kernel && slices.Contains(kernelKinds, m.kind):
			continue
		}
		// What is mounted at a socket's place is that check's alone.
		check := Place(m.target)
		l.Failed(check, "something is mounted at "+Quote(m.target)+" ("+Quote(m.kind)+") that the backend does not tell of")
	}
	l.Passed(sdk.CheckMounts, strconv.Itoa(len(table))+" mounts, all of which every container has or the backend tells of")
}

// device is the number of a device node.
type device struct{ major, minor uint32 }

// commonDevices are in every container.
var commonDevices = map[device]bool{
	{1, 3}: true, {1, 5}: true, {1, 7}: true, {1, 8}: true, {1, 9}: true, // null, zero, full, random, urandom
	{5, 0}: true, {5, 1}: true, {5, 2}: true, // tty, console, ptmx
}

// ownDevices are those of a kernel that is the sandbox's own: tun and fuse
// are not the host's.
var ownDevices = map[device]bool{{10, 200}: true, {10, 229}: true}

// ptyMajors are the terminals of devpts.
const firstPty, lastPty = 136, 143

// devices looks for device nodes that not every container has.
func (l *look) devices() {
	const check = sdk.CheckDevices
	seen, left := 0, maxEntries
	err := filepath.WalkDir("/dev", func(name string, entry fs.DirEntry, err error) error {
		switch left--; {
		case left == 0:
			return errors.New("there is too much in it")
		case errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case entry.Type()&fs.ModeDevice == 0:
			return nil
		}
		var st unix.Stat_t
		if err := unix.Lstat(name, &st); err != nil {
			l.Unknown(check, Quote(name)+" can't be looked at: "+why(err))
			return nil
		}
		seen++
		number := device{unix.Major(uint64(st.Rdev)), unix.Minor(uint64(st.Rdev))} //nolint:unconvert // Rdev is narrower on some platforms
		character := st.Mode&unix.S_IFMT == unix.S_IFCHR
		pty := number.major >= firstPty && number.major <= lastPty
		if character && (commonDevices[number] || pty || l.expect.OwnKernel && ownDevices[number]) {
			return nil
		}
		kind := "block"
		if character {
			kind = "character"
		}
		l.Failed(check, Quote(name)+" is the "+kind+" device "+strconv.FormatUint(uint64(number.major), 10)+":"+strconv.FormatUint(uint64(number.minor), 10))
		return nil
	})
	if err != nil {
		l.Unknown(check, "/dev can't be looked through: "+why(err))
		return
	}
	l.Passed(check, strconv.Itoa(seen)+" device nodes, all of which every container has")
}

// hostInterfaces are the beginnings of names of interfaces that machines with
// containers have, and containers do not.
var hostInterfaces = []string{"docker", "br-", "veth", "virbr", "cni", "flannel", "cali", "podman", "lxcbr", "incusbr"}

// namespaces looks for processes and interfaces of others.
func (l *look) namespaces() {
	const check = sdk.CheckNamespaces
	if l.failed != nil {
		l.Unknown(check, "the processes could not be listed: "+why(l.failed))
	} else {
		first := slices.IndexFunc(l.list, func(p process) bool { return p.pid == 1 })
		switch {
		case first < 0, len(l.list[first].args) == 0:
			l.Unknown(check, "what the first process is can't be seen")
		case !l.isFirst(l.list[first]):
			l.Failed(check, "the first process is "+Quote(l.list[first].args[0])+", and not the sandbox's own; "+strconv.Itoa(len(l.list))+" processes can be seen")
		default:
			l.Passed(check, "the first process is the sandbox's own; "+strconv.Itoa(len(l.list))+" processes can be seen")
		}
	}
	names, err := interfaces()
	if err != nil {
		l.Unknown(check, "the network interfaces can't be listed: "+why(err))
		return
	}
	for _, name := range names {
		host := slices.ContainsFunc(hostInterfaces, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		if host || l.expect.Offline && name != "lo" {
			l.Failed(check, "there is the network interface "+Quote(name))
		}
	}
	l.Passed(check, strconv.Itoa(len(names))+" network interfaces, none of a host's")
}

// interfaces are the names of the network interfaces.
func interfaces() ([]string, error) {
	content, err := read("/proc/net/dev")
	if err != nil {
		return nil, err
	}
	var names []string
	for line := range strings.Lines(string(content)) {
		if name, _, found := strings.Cut(line, ":"); found {
			names = append(names, strings.TrimSpace(name))
		}
	}
	return names, nil
}

// capabilityNames are in the order of their bits.
var capabilityNames = []string{
	"CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "LINUX_IMMUTABLE", "NET_BIND_SERVICE",
	"NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN",
	"SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE",
	"MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF", "CHECKPOINT_RESTORE",
}

// privileges looks at the rights that a command has, and could come to have.
func (l *look) privileges() {
	const check = sdk.CheckPrivileges
	if l.expect.OwnKernel {
		l.Passed(check, "the kernel is the sandbox's own: what a command may do there, it may do there alone")
		return
	}
	l.rights("a command", "self")
	if l.failed != nil {
		l.Unknown(check, "the processes could not be listed: "+why(l.failed))
	}
	judged := 0
	for _, p := range l.list {
		if l.own(p) {
			judged++
			l.rights(p.String(), strconv.Itoa(p.pid))
		}
	}
	if judged == 0 {
		l.Unknown(check, "no process of the sandbox but the one that looks can be seen")
	}
	table, err := mountTable()
	if err != nil {
		l.Unknown(check, "the table of mounts can't be read: "+why(err))
		return
	}
	for _, m := range table {
		if m.target == "/sys" && m.kind == "sysfs" && m.open {
			l.Failed(check, "/sys may be written")
		}
	}
	if f, err := os.Open("/proc/kcore"); err == nil {
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() && info.Size() > 0 {
			l.Failed(check, "/proc/kcore, the host's memory, can be opened")
		}
		_ = f.Close()
	}
	l.Passed(check, "no capability beyond an engine's default set, no new privileges, a seccomp filter")
}

// own tells a process of the sandbox from one of others, where those can be
// seen: that they can is another check's failure, and their rights are not the
// sandbox's.
func (l *look) own(p process) bool {
	if slices.ContainsFunc(l.list, func(p process) bool { return p.pid == 1 && l.isFirst(p) }) {
		return true
	}
	mine, err := read("/proc/self/cgroup")
	if err != nil {
		return false
	}
	its, err := read("/proc/" + strconv.Itoa(p.pid) + "/cgroup")
	return err == nil && len(its) > 0 && bytes.Equal(mine, its)
}

// isFirst reports whether a process is the sandbox's own first one.
func (l *look) isFirst(p process) bool { return len(p.args) > 0 && p.args[0] == l.expect.First }

// rights judges the rights of one process.
func (l *look) rights(who, pid string) {
	const check = sdk.CheckPrivileges
	content, err := read("/proc/" + pid + "/status")
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ESRCH):
		return // it has ended
	case err != nil:
		l.Unknown(check, "the status of "+who+" can't be read: "+why(err))
		return
	}
	status := map[string]string{}
	for line := range strings.Lines(string(content)) {
		name, value, _ := strings.Cut(line, ":")
		status[name] = strings.TrimSpace(value)
	}
	// What is in the bounding set a process can come by.
	for _, set := range []string{"CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb"} {
		mask, err := strconv.ParseUint(status[set], 16, 64)
		if err != nil {
			l.Unknown(check, "the capabilities of "+who+" ("+set+") can't be told")
			continue
		}
		if more := beyond(mask); len(more) > 0 {
			l.Failed(check, set+" of "+who+" holds "+strings.Join(more, ", "))
		}
	}
	if status["NoNewPrivs"] != "1" {
		l.Failed(check, "a set-user-id program gives "+who+" more rights: no_new_privs is not set")
	}
	if status["Seccomp"] != "2" {
		l.Failed(check, "no seccomp filter is in force for "+who)
	}
}

// beyond names the capabilities of a set that reach beyond a container.
func beyond(mask uint64) []string {
	var names []string
	for bit := range 64 {
		if mask&(1<<bit) == 0 {
			continue
		}
		name := "capability " + strconv.Itoa(bit)
		if bit < len(capabilityNames) {
			name = capabilityNames[bit]
		}
		if !slices.Contains(HarmlessCapabilities, name) {
			names = append(names, name)
		}
	}
	return names
}
