"""A mail server for tests, on aiosmtpd: speaks real SMTP, stores accepted messages, and rejects some recipients.

Arguments: the port, the directory, and the requirements for clients, each `NAME=VALUE`: `cert` and `key` (files; they
require STARTTLS, or TLS from the first byte with `wrapped=yes`) and `login` (`USER:PASSWORD`).

Files in the directory:
  mail/      one file per message, with the original bytes after dot-unstuffing
  hold       while it exists, the response to a stored message is delayed
  deaf       while it exists, `MAIL FROM` gets no response
  unwelcome  while it exists, its content is the response to every `MAIL FROM`
  spurned    while it exists, its content is the response to every message
  barred     while it exists, its first line is the response to every recipient outside the domain in its second line

Each line on stdout is an event.

The recipient's local part selects the response:
  refused…     550, always
  policy…      550 because of a policy, always
  grey<N>…     450 for the first N attempts to send to this recipient
  later…       451, always
  login<N>…    530 for the first N attempts
  closing<N>…  421 for the first N attempts
  spam…        554 after the message was received, always
  dmarc…       550 because of a policy after the message was received, always
  lost…        the first message is stored, and the connection closes without a response
  cut…         every message is stored, and the connection closes without a response
  mute…        the message is stored, and there is no response
"""

import asyncio
import os
import re
import signal
import ssl
import sys
import time

from aiosmtpd.smtp import SMTP, AuthResult

PORT, DIRECTORY = int(sys.argv[1]), sys.argv[2]
MAIL = os.path.join(DIRECTORY, "mail")
UNWELCOME = os.path.join(DIRECTORY, "unwelcome")
HOLD = os.path.join(DIRECTORY, "hold")
BARRED = os.path.join(DIRECTORY, "barred")
DEAF = os.path.join(DIRECTORY, "deaf")
SPURNED = os.path.join(DIRECTORY, "spurned")
ASKED = dict(argument.split("=", 1) for argument in sys.argv[3:])


def tell(*words):
    print(*words, flush=True)


def read(path):
    # The test may delete the file at any moment.
    try:
        with open(path) as file:
            return file.read()
    except FileNotFoundError:
        return None


class Handler:
    def __init__(self):
        self.asked = {}
        self.lost = set()
        self.kept = 0

    async def handle_MAIL(self, server, session, envelope, address, options):
        while os.path.exists(DEAF):
            await asyncio.sleep(0.01)
        unwelcome = read(UNWELCOME)
        if unwelcome is not None:
            tell("unwelcome", address)
            return unwelcome
        envelope.mail_from = address
        envelope.mail_options.extend(options)
        return "250 OK"

    async def handle_RCPT(self, server, session, envelope, address, options):
        local = address.split("@")[0]
        self.asked[address] = asked = self.asked.get(address, 0) + 1
        tell("asked", address, asked, time.monotonic_ns() // 1_000_000)
        barred = read(BARRED)
        if barred is not None:
            answer, domain = barred.split("\n")
            if address.split("@")[1] != domain:
                return answer
        if local.startswith("policy"):
            return "550 5.7.1 not from you"
        if local.startswith("refused"):
            return "550 5.1.1 no such mailbox"
        grey = re.match(r"grey(\d+)", local)
        if grey and asked <= int(grey.group(1)):
            return "450 4.2.0 greylisted, come again"
        if local.startswith("later"):
            return "451 4.3.0 not now"
        login = re.match(r"login(\d+)", local)
        if login and asked <= int(login.group(1)):
            return "530 5.7.0 who are you"
        closing = re.match(r"closing(\d+)", local)
        if closing and asked <= int(closing.group(1)):
            return "421 4.3.2 closing"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):
        if envelope.rcpt_tos[0].startswith("spam"):
            return "554 5.6.0 not this content"
        if envelope.rcpt_tos[0].startswith("dmarc"):
            return "550 5.7.26 not from such a sender"
        try:
            with open(SPURNED) as file:
                tell("spurned", envelope.rcpt_tos[0])
                return file.read()
        except FileNotFoundError:
            pass
        self.kept += 1
        name = f"{self.kept:06}"
        # Written under another name and renamed, so that no reader sees a partial file.
        unfinished = os.path.join(DIRECTORY, name)
        with open(unfinished, "wb") as file:
            file.write(envelope.original_content)
        os.rename(unfinished, os.path.join(MAIL, f"{name}.eml"))
        to = envelope.rcpt_tos[0]
        tell("kept", to, name)
        while os.path.exists(HOLD):
            await asyncio.sleep(0.01)
        if to.startswith("mute"):
            await asyncio.sleep(3600)
        if to.startswith("cut") or to.startswith("lost") and to not in self.lost:
            self.lost.add(to)
            server.transport.abort()
            await asyncio.sleep(3600)
        return f"250 kept as {name}"


def authenticate(server, session, envelope, mechanism, data):
    said = b":".join([data.login, data.password]).decode()
    tell("login", "right" if said == ASKED["login"] else "wrong")
    return AuthResult(success=said == ASKED["login"], handled=False)


async def main():
    os.makedirs(MAIL, exist_ok=True)
    handler = Handler()
    loop = asyncio.get_running_loop()
    options = {"hostname": "mail.test", "enable_SMTPUTF8": True}
    wrapped = None
    if "cert" in ASKED:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(ASKED["cert"], ASKED["key"])
        if "wrapped" in ASKED:
            wrapped = context
        else:
            options |= {"tls_context": context, "require_starttls": True}
    if "login" in ASKED:
        options |= {"auth_required": True, "auth_require_tls": wrapped is None and "cert" in ASKED, "authenticator": authenticate}
    server = await loop.create_server(lambda: SMTP(handler, **options), "127.0.0.1", PORT, ssl=wrapped)
    tell("ready")
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    await ended.wait()
    server.close()


asyncio.run(main())
