"""A relay that goes by tokens, members with good ones, and peers with others."""

from collections import Counter

from tests.unit.relay.world import BLOCKS, NAMESPACE, TRACK, World, whole

from kvcs.c4m import TOKEN_TYPE, Claims, Role, TokenConfig, mint, role_scopes
from kvcs.cose import MacKey, SigningKey
from kvcs.errors import RequestErrorCode
from kvcs.moqt.session import events as ev
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.token import Token
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.token_policy import TokenPolicy

EPOCH = 1_700_000_000.0
SCOPE = TrackNamespace(NAMESPACE.fields[:2])
OTHER_SCOPE = TrackNamespace((b"kvcs-1", b"other"))
NOWHERE = TrackNamespace((*SCOPE.fields, b"compat", b"anchor", b"none"))
ALL = LocationFilter.absolute_start(0, 0)
UNAUTHORIZED = RequestErrorCode.UNAUTHORIZED
EXPIRED = RequestErrorCode.EXPIRED_AUTH_TOKEN
MALFORMED = RequestErrorCode.MALFORMED_AUTH_TOKEN

# Every request that a peer can make, on a Track or on a namespace.
READS = ("subscribe", "fetch", "track_status", "subscribe_namespace", "subscribe_tracks")
WRITES = ("publish_namespace", "publish")
_OF_TRACKS = ("subscribe", "fetch", "track_status", "publish")


class Guarded:
    """A relay with one publication that a member has put there.

    `rules` are what the relay asks of tokens (`TokenConfig`); with an audience among them, tokens
    are made for it unless they say otherwise.
    """

    def __init__(self, *, extra_keys=(), **rules):
        self.audience = (rules["audience"],) if "audience" in rules else ()
        self.mac = MacKey(b"mac", bytes(range(32)))
        self.signer = SigningKey.generate(b"signer")
        self.keys = (self.mac, self.signer)
        keys = (self.mac, self.signer.public, *extra_keys)
        self.policy = TokenPolicy(keys, TokenConfig(leeway=0.0, **rules), clock=self.wall)
        self.world = World(authorize=self.policy)
        self.publisher = self.world.client()
        self.publisher.peer.tokens = (self.token(Role.PRODUCER),)
        self.publisher.announce(NAMESPACE)
        self.publisher.add_groups(0)
        self.stranger = self.world.client()

    def wall(self):
        return EPOCH + self.world.now

    def claims(self, role, ttl=1000.0, *, scope=SCOPE, **more):
        scopes = role_scopes(role, [scope])
        values = {"audience": self.audience, **more}
        return Claims(scopes=scopes, expires_at=self.wall() + ttl, **values)

    def token(self, role, ttl=1000.0, *, key=None, scope=SCOPE, **more):
        made = mint(self.claims(role, ttl, scope=scope, **more), key or self.mac)
        return Token.use_value(made, token_type=TOKEN_TYPE)

    def ask(self, kind, *tokens, namespace=NAMESPACE, client=None, **more):
        """Send a request; return its id."""
        client = client or self.stranger
        parameters = Parameters(authorization_tokens=tokens, **more)
        if kind == "fetch":
            parameters = Parameters(authorization_tokens=tokens, location_filter=ALL, **more)
        subject = FullTrackName(namespace, TRACK.name) if kind in _OF_TRACKS else namespace
        return client.send(getattr(client.session, kind), subject, parameters)

    def refusal(self, request_id, client=None):
        """All that a peer is told about a request that is refused."""
        (rejection,) = (client or self.stranger).of(request_id, ev.RequestRejected)
        return rejection.code, rejection.reason, rejection.retry_after, rejection.redirect

    def answer(self, kind, *tokens, client=None, **more):
        """All that a peer is told about a request that is refused; the relay has counted it."""
        before = self.refused
        told = self.refusal(self.ask(kind, *tokens, client=client, **more), client)
        assert self.refused - before == {RequestErrorCode(told[0]).name: 1}
        return told

    def code(self, kind, *tokens, **more):
        return self.answer(kind, *tokens, **more)[0]

    def withdraw(self, key):
        """Forget a key that makes tokens, as a relay does whose file of keys has changed."""
        self.policy.replace_keys(other for other in (self.mac, self.signer.public) if other != key)
        self.world.core.admission.review.everything(now=self.world.now)
        self.world.settle()

    @property
    def refused(self):
        return Counter(self.world.statistics.requests_refused)

    @property
    def ended(self):
        return dict(self.world.statistics.grants_ended)

    def assert_untouched(self):
        """The member's publication is as it was, and nobody's session was closed."""
        assert self.world.statistics.namespaces == 1
        assert not self.stranger.link.session.is_closed
        member = self.world.client()
        request_id = self.ask("fetch", self.token(Role.CONSUMER), client=member)
        assert member.objects(request_id)[:BLOCKS] == whole(1)


def raw(octets):
    """A token of the right type with any octets."""
    return Token.use_value(octets, token_type=TOKEN_TYPE)
