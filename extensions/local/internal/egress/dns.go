// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package egress

// The name server of a sandbox. It asks nobody: whether a name resolves is
// the allow-list's decision, and where it leads is found out when something
// connects. So no query leaves the machine before a connection that is
// allowed, and none carries data out.

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	maxQuery   = 4096
	answerTTL  = 60 // seconds; the answer never changes
	dnsIdle    = 10 * time.Second
	maxQueries = 1000 // on one TCP connection
)

// nameServer answers queries.
type nameServer struct {
	policy  policy
	names   *names
	refused func(protocol, target, reason string)
}

// answer returns the answer to a query, or nil for what is none.
func (s *nameServer) answer(query []byte) []byte {
	var parser dnsmessage.Parser
	head, err := parser.Start(query)
	if err != nil || head.Response {
		return nil
	}
	reply := dnsmessage.Header{ID: head.ID, Response: true, OpCode: head.OpCode, RecursionDesired: head.RecursionDesired, RecursionAvailable: true}
	questions, err := parser.AllQuestions()
	switch {
	case err != nil || len(questions) != 1:
		reply.RCode = dnsmessage.RCodeFormatError
		return pack(reply, nil, nil)
	case head.OpCode != 0:
		reply.RCode = dnsmessage.RCodeNotImplemented
		return pack(reply, questions, nil)
	}
	question := questions[0]
	name := strings.ToLower(strings.TrimSuffix(question.Name.String(), "."))
	if isLocalhost(name) {
		if question.Type != dnsmessage.TypeA {
			return pack(reply, questions, nil)
		}
		return pack(reply, questions, record(question, loopback4))
	}
	if question.Class != dnsmessage.ClassINET || !plain(name) || !s.policy.resolves(name) {
		// "No such name" and not "refused": with the latter a resolver asks
		// again and again before it gives up.
		s.refused("dns", name, "no entry of network.allow names it")
		reply.RCode = dnsmessage.RCodeNameError
		return pack(reply, questions, nil)
	}
	if question.Type != dnsmessage.TypeA {
		// The name exists and has no such record. That goes for AAAA: the
		// gateway itself finds out over which protocol the name is reached.
		return pack(reply, questions, nil)
	}
	addr, ok := s.names.address(name)
	if !ok {
		s.refused("dns", name, "too many names were resolved")
		reply.RCode = dnsmessage.RCodeServerFailure
		return pack(reply, questions, nil)
	}
	return pack(reply, questions, record(question, addr))
}

var loopback4 = netip.AddrFrom4([4]byte{127, 0, 0, 1})

func record(question dnsmessage.Question, addr netip.Addr) *dnsmessage.Resource {
	return &dnsmessage.Resource{
		Header: dnsmessage.ResourceHeader{Name: question.Name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET, TTL: answerTTL},
		Body:   &dnsmessage.AResource{A: addr.As4()},
	}
}

// plain reports whether a name consists of what host names consist of.
func plain(name string) bool {
	return strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") == "" && name != ""
}

func pack(head dnsmessage.Header, questions []dnsmessage.Question, answer *dnsmessage.Resource) []byte {
	message := dnsmessage.Message{Header: head, Questions: questions}
	if answer != nil {
		message.Answers = []dnsmessage.Resource{*answer}
	}
	packed, err := message.Pack()
	if err != nil {
		return nil
	}
	return packed
}

// serveUDP answers until the connection is closed. Answering never waits, so
// one loop is enough, and a flood of queries costs nothing but itself.
func (s *nameServer) serveUDP(conn net.PacketConn) {
	query := make([]byte, maxQuery)
	for {
		n, from, err := conn.ReadFrom(query)
		if err != nil {
			return
		}
		if reply := s.answer(query[:n]); reply != nil {
			_, _ = conn.WriteTo(reply, from)
		}
	}
}

// serveTCP answers the queries of one connection.
func (s *nameServer) serveTCP(conn net.Conn) {
	defer conn.Close()
	for range maxQueries {
		_ = conn.SetDeadline(time.Now().Add(dnsIdle))
		var size [2]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(size[:]))
		if len(query) > maxQuery {
			return
		}
		if _, err := io.ReadFull(conn, query); err != nil {
			return
		}
		reply := s.answer(query)
		if reply == nil {
			return
		}
		if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...)); err != nil {
			return
		}
	}
}
