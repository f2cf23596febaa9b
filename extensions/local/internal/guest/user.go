// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package guest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// User is an entry of the user database.
type User struct {
	UID    uint32
	GID    uint32
	Groups []uint32
	Home   string
}

// maxDatabase bounds what is read of a user database.
const maxDatabase = 4 << 20

// LookupUser finds a user by name or uid in the texts of passwd and group.
func LookupUser(name string, passwd, group io.Reader) (User, error) {
	var user User
	found := false
	login := name
	scan := bufio.NewScanner(io.LimitReader(passwd, maxDatabase))
	for scan.Scan() {
		f := strings.Split(scan.Text(), ":")
		if len(f) < 7 || f[0] != name && f[2] != name {
			continue
		}
		uid, err1 := strconv.ParseUint(f[2], 10, 32)
		gid, err2 := strconv.ParseUint(f[3], 10, 32)
		if err1 != nil || err2 != nil {
			continue
		}
		user = User{UID: uint32(uid), GID: uint32(gid), Home: f[5]}
		login, found = f[0], true
		break
	}
	if !found {
		return User{}, fmt.Errorf("no user %q", name)
	}
	scan = bufio.NewScanner(io.LimitReader(group, maxDatabase))
	for scan.Scan() {
		f := strings.Split(scan.Text(), ":")
		if len(f) < 4 || !slices.Contains(strings.Split(f[3], ","), login) {
			continue
		}
		if gid, err := strconv.ParseUint(f[2], 10, 32); err == nil {
			user.Groups = append(user.Groups, uint32(gid))
		}
	}
	return user, nil
}

// ResolveUser resolves a name, a uid or uid:gid. Numbers need no entry.
func ResolveUser(name string, passwd, group io.Reader) (User, error) {
	uidText, gidText, both := strings.Cut(name, ":")
	uid, err := strconv.ParseUint(uidText, 10, 32)
	if err != nil {
		if both {
			return User{}, fmt.Errorf("%q is neither a name nor uid:gid", name)
		}
		return LookupUser(name, passwd, group)
	}
	user, err := LookupUser(uidText, passwd, group)
	if err != nil {
		user = User{UID: uint32(uid), GID: uint32(uid), Home: "/"}
	}
	if both {
		gid, err := strconv.ParseUint(gidText, 10, 32)
		if err != nil {
			return User{}, fmt.Errorf("%q is not uid:gid", name)
		}
		user.GID = uint32(gid)
	}
	return user, nil
}

func printUser(to io.Writer, name string) error {
	passwd, err := os.Open("/etc/passwd")
	if err != nil {
		return err
	}
	defer passwd.Close()
	var groups io.Reader = strings.NewReader("")
	if group, err := os.Open("/etc/group"); err == nil {
		defer group.Close()
		groups = group
	}
	user, err := LookupUser(name, passwd, groups)
	if err != nil {
		return err
	}
	return json.NewEncoder(to).Encode(user)
}
