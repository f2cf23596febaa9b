// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package backend

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"debug/elf"
	"debug/macho"
	"debug/pe"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// program is the file that will be executed.
type program struct {
	exec string   // what is given to the kernel
	file *os.File // keeps exec valid; nil when nothing has to
}

func (p *program) close() {
	if p.file != nil {
		_ = p.file.Close()
	}
}

// openProgram checks a program against its pin, "" for none. On Linux what
// is then executed is the very file that was read, whatever the path names by
// then.
func openProgram(path, pin string) (*program, error) {
	if pin == "" {
		return &program{exec: path}, nil
	}
	want, err := hex.DecodeString(strings.TrimPrefix(strings.ToLower(pin), "sha256:"))
	if err != nil || len(want) != sha256.Size {
		return nil, sdk.Invalid("sha256", "%.80q is no digest: 64 hexadecimal digits", pin)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, &sdk.Error{Kind: sdk.ErrUnreachable, Message: "the program of an extension can't be read, and it is pinned", Err: err}
	}
	p := &program{exec: path, file: file}
	digest, head := sha256.New(), make([]byte, 2)
	n, _ := io.ReadFull(file, head)
	digest.Write(head[:n])
	if _, err := io.Copy(digest, file); err != nil {
		p.close()
		return nil, &sdk.Error{Kind: sdk.ErrUnreachable, Message: "the program of an extension can't be read, and it is pinned", Err: err}
	}
	if have := digest.Sum(nil); subtle.ConstantTimeCompare(have, want) != 1 {
		p.close()
		return nil, &sdk.Error{
			Kind: sdk.ErrInvalid, Path: "sha256",
			Message: fmt.Sprintf("%s has the digest %x and is pinned to %x", path, have, want),
			Advice:  "when the extension was updated, update the pin; otherwise find out who changed the file",
		}
	}
	// A script would be opened by its interpreter, after the descriptor is closed.
	if runtime.GOOS == "linux" && !bytes.Equal(head, []byte("#!")) {
		p.exec = fmt.Sprintf("/proc/self/fd/%d", file.Fd())
	}
	return p, nil
}

// wrongFormat says for which machine a program was built, when it is not
// this one.
func wrongFormat(path string) string {
	if f, err := elf.Open(path); err == nil {
		defer f.Close()
		arch := map[elf.Machine]string{elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64", elf.EM_386: "386", elf.EM_ARM: "arm"}[f.Machine]
		if runtime.GOOS != "linux" || arch != runtime.GOARCH {
			return fmt.Sprintf("a program for Linux or its like on %s", orText(arch, f.Machine.String()))
		}
		return ""
	}
	if f, err := macho.Open(path); err == nil {
		defer f.Close()
		arch := map[macho.Cpu]string{macho.CpuAmd64: "amd64", macho.CpuArm64: "arm64"}[f.Cpu]
		if runtime.GOOS != "darwin" || arch != runtime.GOARCH {
			return fmt.Sprintf("a program for macOS on %s", orText(arch, f.Cpu.String()))
		}
		return ""
	}
	if f, err := pe.Open(path); err == nil {
		defer f.Close()
		if runtime.GOOS != "windows" {
			return "a program for Windows"
		}
		return ""
	}
	return "no program that this system knows"
}

func orText(text, otherwise string) string {
	if text != "" {
		return text
	}
	return otherwise
}
