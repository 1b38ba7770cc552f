"""A Kafka with TLS, SCRAM and ACLs, as in production, on one embedded broker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trustme
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives import serialization

from marshal_py.embedded.kafka import EmbeddedKafka

__all__ = ["SecureKafka", "secure_kafka"]

ADMIN_PASSWORD = "pw-of-the-admin"


class SecureKafka:
    """The broker, and what an administrator does with it."""

    def __init__(self, server: EmbeddedKafka, ca: Path) -> None:
        self.server, self.ca = server, ca
        self.admin: AdminClient = server.admin()
        """May do everything."""

    def config(
        self, user: str, password: str, *, mechanism: str = "SCRAM-SHA-512"
    ) -> dict[str, Any]:
        """What a client needs."""
        return {
            "bootstrap.servers": self.server.bootstrap_servers,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.ca),
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        }

    def add_user(self, user: str, password: str) -> None:
        """Store SCRAM credentials."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion(user, info, password.encode())
        for future in self.admin.alter_user_scram_credentials([change]).values():
            future.result(60)

    def allow(self, user: str, operation: str, topic: str) -> None:
        """Allow an operation on a topic, as `kafka-acls.sh --add` does."""
        binding = AclBinding(*_acl(user, operation, topic))
        for future in self.admin.create_acls([binding]).values():
            future.result(60)

    def forbid(self, user: str, operation: str, topic: str) -> None:
        """Take it back."""
        binding = AclBindingFilter(*_acl(user, operation, topic))
        for future in self.admin.delete_acls([binding]).values():
            future.result(60)


_Acl = tuple[ResourceType, str, ResourcePatternType, str, str, AclOperation, AclPermissionType]


def _acl(user: str, operation: str, topic: str) -> _Acl:
    return (
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        AclOperation[operation.upper()],
        AclPermissionType.ALLOW,
    )


@contextlib.contextmanager
def secure_kafka(folder: Path) -> Iterator[SecureKafka]:
    """Start it. Its only user is `admin`, who may do everything."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    ca, keystore = folder / "ca.pem", folder / "server.pem"
    authority.cert_pem.write_to_path(str(ca))
    key = serialization.load_pem_private_key(certificate.private_key_pem.bytes(), None)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    keystore.write_bytes(pem + b"".join(c.bytes() for c in certificate.cert_chain_pems))
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    users = f'username="admin" password="{ADMIN_PASSWORD}" user_admin="{ADMIN_PASSWORD}"'
    prefix = "listener.name.plaintext"
    properties = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_SSL,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "inter.broker.listener.name": "PLAINTEXT",
        f"{prefix}.plain.sasl.jaas.config": f"{plain} {users};",
        f"{prefix}.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        f"{prefix}.ssl.keystore.type": "PEM",
        f"{prefix}.ssl.keystore.location": str(keystore),
        f"{prefix}.ssl.truststore.type": "PEM",
        f"{prefix}.ssl.truststore.location": str(ca),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin;User:ANONYMOUS",
    }
    client = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(ca),
        "sasl.mechanism": "PLAIN",
        "sasl.username": "admin",
        "sasl.password": ADMIN_PASSWORD,
    }
    with EmbeddedKafka(properties=properties, client_config=client, progress=None) as server:
        yield SecureKafka(server, ca)
