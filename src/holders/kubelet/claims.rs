//! Which devices of resource claims (DRA) were granted for administrative access, from the API server.
//!
//! Such a grant (`adminAccess`) watches devices that others may have, so it holds nothing; the kubelet's list does not tell
//! it. Each claim is read by name, once while the list has it: one that a pod uses is neither deleted nor granted anew.

use std::collections::BTreeSet;
use std::time::Duration;

use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::SourceSettings;
use super::https::{HttpsClient, RequestFailure};

/// Versions of the API that report the access of a device, the newest first (Kubernetes 1.34, 1.33, 1.32).
const VERSIONS: [&str; 3] = ["v1", "v1beta2", "v1beta1"];

const PAUSE: Duration = Duration::from_secs(10);

const MOST_CLAIMS: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimName {
    pub namespace: String,
    pub name: String,
}

/// A device that a claim was granted, as the kubelet and the API server name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimedDevice {
    pub claim: ClaimName,
    pub driver: String,
    pub pool: String,
    /// Its name in the pool.
    pub device: String,
}

#[derive(Debug)]
pub struct ClaimReader {
    /// None outside of a cluster.
    server: Option<HttpsClient>,
    known: BTreeSet<ClaimName>,
    administrative: BTreeSet<ClaimedDevice>,
    /// Why a listed claim is not known.
    problem: Option<String>,
    /// When it is asked again after a failure.
    next: Duration,
}

#[derive(Debug)]
struct UnreadClaim {
    problem: String,
    /// Whether no other claim can be read either.
    is_of_all: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DeviceResult {
    driver: String,
    pool: String,
    device: String,
    admin_access: Option<bool>,
}

impl ClaimReader {
    /// A reader of the API server in these settings, without a request.
    ///
    /// # Errors
    /// The runtime cannot start.
    pub fn new(settings: &SourceSettings) -> std::io::Result<Self> {
        let server = settings.api_server.clone();
        Ok(Self {
            server: server.map(|server| HttpsClient::new(server, &settings.account)).transpose()?,
            known: BTreeSet::new(),
            administrative: BTreeSet::new(),
            problem: None,
            next: Duration::ZERO,
        })
    }

    /// Reads the listed claims that are not known yet, and forgets those that are not listed. `now` is any clock that
    /// never goes back.
    pub fn refresh(&mut self, listed: &BTreeSet<ClaimName>, now: Duration) {
        self.known.retain(|claim| listed.contains(claim));
        self.administrative.retain(|device| listed.contains(&device.claim));
        let unknown: Vec<&ClaimName> = listed.difference(&self.known).take(MOST_CLAIMS).collect();
        let unknown: Vec<ClaimName> = unknown.into_iter().cloned().collect();
        if unknown.is_empty() {
            self.problem = None;
        } else if self.problem.is_none() || now >= self.next {
            self.problem = None;
            for claim in unknown {
                let Err(unread) = self.read(claim) else { continue };
                self.problem.get_or_insert(unread.problem);
                if unread.is_of_all {
                    break;
                }
            }
            self.next = now + PAUSE;
        }
    }

    /// The devices of listed claims that were granted for administrative access.
    pub const fn administrative(&self) -> &BTreeSet<ClaimedDevice> {
        &self.administrative
    }

    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    fn read(&mut self, claim: ClaimName) -> Result<(), UnreadClaim> {
        let Some(server) = self.server.as_ref().filter(|server| server.has_token()) else {
            let problem = "the agent has no service account, and no API server to ask".to_owned();
            return Err(UnreadClaim { problem, is_of_all: true });
        };
        let results = get(server, &claim)?;
        // A device may be granted by one request of a claim for use, and by another for watching it.
        let is_used = |one: &DeviceResult| {
            results.iter().any(|other| {
                other.admin_access != Some(true)
                    && (&other.driver, &other.pool, &other.device) == (&one.driver, &one.pool, &one.device)
            })
        };
        for one in results.iter().filter(|one| !is_used(one)) {
            self.administrative.insert(ClaimedDevice {
                claim: claim.clone(),
                driver: one.driver.clone(),
                pool: one.pool.clone(),
                device: one.device.clone(),
            });
        }
        self.known.insert(claim);
        Ok(())
    }
}

/// The devices of a claim; none of one that no version of the API has.
fn get(server: &HttpsClient, claim: &ClaimName) -> Result<Vec<DeviceResult>, UnreadClaim> {
    let ClaimName { namespace, name } = claim;
    for version in VERSIONS {
        let path = format!("/apis/resource.k8s.io/{version}/namespaces/{namespace}/resourceclaims/{name}");
        match server.get(&path) {
            Ok(body) => {
                return results(&body).map_err(|error| UnreadClaim {
                    problem: RequestFailure::new(format!("{namespace}/{name}: {error}")).problem,
                    is_of_all: false,
                });
            }
            Err(RequestFailure { status: Some(StatusCode::NOT_FOUND), .. }) => {}
            Err(RequestFailure {
                problem,
                status: Some(StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED),
            }) => {
                let problem = format!(
                    "{problem}; grant the agent's service account get on resourceclaims of resource.k8s.io"
                );
                return Err(UnreadClaim { problem, is_of_all: true });
            }
            // Without a status there was no response.
            Err(RequestFailure { problem, status }) => {
                return Err(UnreadClaim { problem, is_of_all: status.is_none() });
            }
        }
    }
    Ok(Vec::new())
}

/// The devices that a claim was granted; a claim that is not allocated yet has none.
fn results(claim: &[u8]) -> serde_json::Result<Vec<DeviceResult>> {
    let mut value: Value = serde_json::from_slice(claim)?;
    for key in ["status", "allocation", "devices", "results"] {
        let Some(mut fields) = Option::<Map<String, Value>>::deserialize(value)? else {
            return Ok(Vec::new());
        };
        value = fields.remove(key).unwrap_or_default();
    }
    Ok(Option::deserialize(value)?.unwrap_or_default())
}
